-- Roles and databases whose sessions commit without waiting for the disk, each with what ends that; those of other databases are
-- left out.
SELECT concat_ws(' in ', 'role ' || quote_ident(r.rolname), 'database ' || quote_ident(d.datname)) || ': ' || s.setting,
       CASE WHEN d.datname IS NULL THEN format('ALTER ROLE %I RESET synchronous_commit;', r.rolname)
            WHEN r.rolname IS NULL THEN format('ALTER DATABASE %I RESET synchronous_commit;', d.datname)
            ELSE format('ALTER ROLE %I IN DATABASE %I RESET synchronous_commit;', r.rolname, d.datname) END
FROM pg_db_role_setting c
CROSS JOIN LATERAL unnest(c.setconfig) AS s(setting)
LEFT JOIN pg_roles r ON r.oid = c.setrole
LEFT JOIN pg_database d ON d.oid = c.setdatabase
WHERE (c.setdatabase = 0 OR d.datname = current_database()) AND lower(s.setting) ~ '^synchronous_commit=(off|false|no|0)$'
ORDER BY 1;

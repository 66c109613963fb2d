--:norecord
       , NULL::boolean, NULL::boolean

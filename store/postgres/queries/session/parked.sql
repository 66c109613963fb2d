--:columns
       , m.place, m.reason, m.attempts, m.attempts_before

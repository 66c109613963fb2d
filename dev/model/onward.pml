/*
 * Who owns a partition, what a settle changes, and what is published more than once: lease, settle and publish of
 * store/postgres and relay/core, as a model that Spin explores in every order. docs/model.md says what is in it and what is
 * not; `make model` runs it. Each guard that can be left out has a flag (spin -DNO_LEASE_CHECK): then a property must fail.
 *
 * A partition has the messages 1..MESSAGES of one key. A cursor is a number: everything up to it is settled. A relay that
 * starts again has a new id, so each process is one life of a relay; at most two live at once. Whatever goes wrong is taken
 * from the budget FAULTS, so that faults end; there is one life more than faults, so that somebody is left.
 */
#ifndef PARTITIONS
#define PARTITIONS 1
#endif
#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef WINDOW
#define WINDOW 2 /* messages that a relay may have published and not settled */
#endif
#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef RETURNS
#define RETURNS 1 /* partitions that are given back on purpose */
#endif
#define LIVES (FAULTS + 1)

#define NOBODY 0
#define NOWHERE 15 /* of a partition that does not stand in a cursor row, or that a request does not have */

/* leased[]: what the relay's own clock and the database's say. The relay's began before the renewal was sent: it ends first. */
#define VALID 0
#define OVER 1    /* by the relay's clock */
#define EXPIRED 2 /* by the database's too */

/* life[] */
#define UNBORN 0
#define ALIVE 1
#define VOID 2 /* its session is void: it does nothing before it was loaded again */
#define GONE 3

/* request.kind */
#define NONE 0
#define CLAIM 1
#define SETTLE 2

#define AT(i, p) ((i) * PARTITIONS + (p))
#define OF(p, m) ((p) * (MESSAGES + 1) + (m))
#define BIT(m) (1 << (m))
#define ME(i) ((i) + 1) /* how owner[] and locked[] name life i */

/* ---- the database */
byte owner[PARTITIONS];  /* outbox_partitions.relay */
byte epoch[PARTITIONS];  /* .epoch */
byte seq[PARTITIONS];    /* .seq: the cursor while it is free, or not in its relay's row */
bool registered[LIVES];  /* a row in outbox_relays */
byte leased[LIVES];      /* .leased_until, and the relay's own idea of it */
byte locked[LIVES];      /* who takes it over just now */
byte seen[LIVES];        /* the version of the cursor row that the take-over's statement sees */
bool cursor[LIVES];      /* a row in outbox_cursors */
byte no[LIVES];          /* .no */
byte row[LIVES * PARTITIONS]; /* .partitions and .seqs */

/* ---- what a relay knows */
byte life[LIVES];
byte known[LIVES];                 /* the no of its cursor row */
byte held[LIVES * PARTITIONS];     /* the epoch it holds the partition with; 0: it does not */
byte settled[LIVES * PARTITIONS];  /* by what it knows */
byte sent[LIVES * PARTITIONS];     /* the last message handed to the network; outlives the relay, to count by */
byte flying[LIVES * PARTITIONS];   /* sent and not answered: a bit each */

/* A statement on its way to the database. The relay may be gone, or have given up on it, when it gets there. */
typedef Request {
    byte kind;
    byte no;
    byte gives; /* 1 + the partition that goes back */
    byte upto[PARTITIONS];
    byte epoch[PARTITIONS]; /* not sent: to see whether the settle changed what was not its sender's */
};
Request request[LIVES]; /* the relay waits for its answer */
Request late[LIVES];    /* nobody waits: the connection broke, or the relay crashed */

/* ---- the broker */
byte copies[PARTITIONS * (MESSAGES + 1)]; /* how often it has stored a message */
byte astray[PARTITIONS * (MESSAGES + 1)]; /* copies on the network that no relay waits for */

/* ---- budgets */
byte faults = FAULTS;
byte returns = RETURNS;

/* ---- what the properties look at */
byte may[PARTITIONS * (MESSAGES + 1)];  /* copies that are excused: sent, not settled, when something went wrong */
byte excused;       /* windows that something going wrong excuses: as many messages may come twice */
bool unstored;      /* something was settled that the broker does not have */
bool disordered;    /* a first copy came before that of an earlier message of its key */
bool unexcused;     /* a copy too many of one message */
bool overrun;       /* more copies than one window for each thing that went wrong */
bool intruded;      /* a relay sent for a partition that it did not own */
bool meddled;       /* a settle of a relay that did not own the partition was taken */

/* scratch, not part of the state */
hidden byte p;
hidden byte m;
hidden byte to;
hidden byte any;

#define DURABLE(p) ((owner[p] != NOBODY && row[AT(owner[p] - 1, p)] != NOWHERE) -> row[AT(owner[p] - 1, p)] : seq[p])

/* all that life i sent of partition p, and did not settle, may come again: each message once more */
inline excuse(i, p) {
    m = DURABLE(p) + 1;
    do
    :: m <= sent[AT(i, p)] -> may[OF(p, m)]++; m++
    :: else -> break
    od
}

/* what is on the network stays there; nobody waits for it */
inline stray(i, p) {
    m = 1;
    do
    :: m <= MESSAGES ->
        if
        :: flying[AT(i, p)] & BIT(m) -> astray[OF(p, m)]++
        :: else
        fi;
        m++
    :: else -> break
    od;
    flying[AT(i, p)] = 0
}

/* the relay forgets everything but its id */
inline forget(i) {
    p = 0;
    do
    :: p < PARTITIONS ->
        stray(i, p);
        held[AT(i, p)] = 0;
        settled[AT(i, p)] = 0;
        p++
    :: else -> break
    od;
    known[i] = 0
}

/* the request stays on its way, and nobody waits for its answer (one at most: a second one is lost) */
inline abandon(i) {
    if
    :: request[i].kind != NONE && late[i].kind == NONE -> give_up(i)
    :: else
    fi;
    clear(request[i])
}

inline give_up(i) {
    late[i].kind = request[i].kind;
    late[i].no = request[i].no;
    late[i].gives = request[i].gives;
    p = 0;
    do
    :: p < PARTITIONS ->
        late[i].upto[p] = request[i].upto[p];
        late[i].epoch[p] = request[i].epoch[p];
        p++
    :: else -> break
    od
}

inline clear(q) {
    q.kind = NONE;
    q.no = 0;
    q.gives = 0;
    m = 0;
    do
    :: m < PARTITIONS -> q.upto[m] = 0; q.epoch[m] = 0; m++
    :: else -> break
    od;
    m = 0 /* a d_step may not end with a loop */
}

/* the largest number up to which all that was sent is stored */
inline answered(i, p) {
    to = sent[AT(i, p)];
#ifndef SETTLE_BEFORE_PUBLISH
    m = 1;
    do
    :: m <= MESSAGES ->
        if
        :: flying[AT(i, p)] & BIT(m) -> to = m - 1; break
        :: else
        fi;
        m++
    :: else -> break
    od
#endif
}

/* ---- statements of the database, each in one step */

#ifdef CLAIM_OF_ANY_ROW
#define CLAIMS(i, q) true
#else
#define CLAIMS(i, q) (cursor[i] && no[i] == q.no)
#endif

/* claim.sql: partition p for life i. listens: the relay gets the answer */
inline claim(i, p, q, listens) {
    if
#ifdef CLAIM_WITHOUT_OWN_ROW
    :: owner[p] == NOBODY ->
#else
    :: owner[p] == NOBODY && registered[i] && leased[i] != EXPIRED && CLAIMS(i, q) ->
#endif
        owner[p] = ME(i);
        epoch[p]++;
        if
        :: listens ->
            held[AT(i, p)] = epoch[p];
            settled[AT(i, p)] = seq[p];
            sent[AT(i, p)] = seq[p]
        :: else
        fi
    :: else
    fi
}

/* settle.sql. joins: partitions with a cursor of their own come into the relay's row */
inline settle(i, q, listens, joins) {
    if
#ifdef SETTLE_KEEPS_ROW
    :: true -> /* the row before is left alone, and so whether there is one is not asked */
#else
    :: cursor[i] && no[i] == q.no ->
#endif
        no[i]++;
        p = 0;
        do
        :: p < PARTITIONS ->
            if
            :: q.upto[p] != NOWHERE ->
                meddled = meddled || owner[p] != ME(i) || epoch[p] != q.epoch[p];
                m = 1;
                do
                :: m <= q.upto[p] -> unstored = unstored || copies[OF(p, m)] == 0; m++
                :: else -> break
                od;
                if
                :: owner[p] != ME(i)
                :: owner[p] == ME(i) && q.gives == p + 1 ->
#ifndef GIVES_BACK_UNSETTLED
                    seq[p] = q.upto[p];
#else
                    seq[p] = DURABLE(p);
#endif
                    row[AT(i, p)] = NOWHERE;
                    owner[p] = NOBODY
                :: owner[p] == ME(i) && q.gives != p + 1 && (joins || row[AT(i, p)] != NOWHERE) ->
                    row[AT(i, p)] = q.upto[p];
                    seq[p] = 0 /* stale, and not looked at */
                :: else -> seq[p] = q.upto[p]
                fi;
                if
                :: listens && q.gives == p + 1 -> held[AT(i, p)] = 0; settled[AT(i, p)] = 0; sent[AT(i, p)] = 0
                :: listens && q.gives != p + 1 -> settled[AT(i, p)] = q.upto[p]
                :: else
                fi
            :: else
            fi;
            p++
        :: else -> break
        od;
        if
        :: listens -> known[i] = no[i]
        :: else
        fi
    :: else ->
        if
        :: listens -> forget(i); life[i] = VOID
        :: else
        fi
    fi;
    clear(q)
}

/* reload.sql: what I own and from where */
inline reload(i) {
#ifndef RELOAD_KEEPS_ROW
    no[i]++; /* a settle that is still on its way finds its row replaced */
#endif
    known[i] = no[i];
    p = 0;
    do
    :: p < PARTITIONS ->
        if
        :: owner[p] == ME(i) ->
            excuse(i, p);
            held[AT(i, p)] = epoch[p];
            settled[AT(i, p)] = DURABLE(p);
            sent[AT(i, p)] = DURABLE(p)
        :: else -> held[AT(i, p)] = 0; settled[AT(i, p)] = 0; sent[AT(i, p)] = 0
        fi;
        p++
    :: else -> break
    od;
    life[i] = ALIVE
}

/* free.sql, held.sql and unregister.sql: the rest of the transaction that took the lock */
inline take_over(v) {
    if
    :: seen[v] == no[v] ->
        any = 0;
        p = 0;
        do
        :: p < PARTITIONS ->
            if
            :: owner[p] == ME(v) ->
                any = 1;
                to = DURABLE(p);
                excuse(v, p);
                seq[p] = to;
                owner[p] = NOBODY
            :: else
            fi;
            if
            :: life[v] == GONE -> sent[AT(v, p)] = 0
            :: else
            fi;
            row[AT(v, p)] = NOWHERE;
            p++
        :: else -> break
        od;
        if
        :: any == 1 -> excused = excused + WINDOW
        :: else
        fi;
        registered[v] = false;
#ifndef TAKE_OVER_LEAVES_ROW
        cursor[v] = false;
#endif
        locked[v] = NOBODY
#ifdef TAKE_OVER_LOOKS_ONCE
    :: else -> registered[v] = false; cursor[v] = false; locked[v] = NOBODY
#else
    :: else -> seen[v] = no[v] /* a settle came between: it sees nothing of the new row, and looks again */
#endif
    fi
}

/* ---- the relay */

#define LIVING(i) (life[i] == ALIVE || life[i] == VOID)

#ifdef TWO_OF_A_KEY_IN_FLIGHT
#define FREE_TO_SEND(i, p) (flying[AT(i, p)] == 0 || flying[AT(i, p)] == BIT(sent[AT(i, p)]))
#else
#define FREE_TO_SEND(i, p) (flying[AT(i, p)] == 0)
#endif

#ifdef NO_LEASE_CHECK
#define MAY_SEND(i) true
#else
#define MAY_SEND(i) (leased[i] == VALID)
#endif

#if PARTITIONS == 1
#define OPEN(i) (sent[i] - settled[i]) /* published and not settled, by what the relay knows */
#else
#define OPEN(i) (sent[AT(i, 0)] - settled[AT(i, 0)] + sent[AT(i, 1)] - settled[AT(i, 1)])
#endif

inline send(i, p) {
    sent[AT(i, p)]++;
    flying[AT(i, p)] = flying[AT(i, p)] | BIT(sent[AT(i, p)]);
    intruded = intruded || owner[p] != ME(i) || epoch[p] != held[AT(i, p)];
    printf("relay %d sends message %d of partition %d\n", ME(i), sent[AT(i, p)], p)
}

inline ask_to_settle(i, g) {
    request[i].kind = SETTLE;
    request[i].no = known[i];
    request[i].gives = g;
    p = 0;
    do
    :: p < PARTITIONS ->
        if
        :: held[AT(i, p)] != 0 -> answered(i, p); request[i].upto[p] = to; request[i].epoch[p] = held[AT(i, p)]
        :: else -> request[i].upto[p] = NOWHERE
        fi;
        p++
    :: else -> break
    od;
    printf("relay %d settles up to %d with cursor row %d, gives back %d\n", ME(i), request[i].upto[0], request[i].no, g)
}

/* something to settle: more of partition p was answered than is settled */
#ifdef SETTLE_BEFORE_PUBLISH
#define ANSWERED(i, p) (sent[AT(i, p)] > settled[AT(i, p)])
#else
#define ANSWERED(i, p) (sent[AT(i, p)] > settled[AT(i, p)] && (flying[AT(i, p)] & BIT(settled[AT(i, p)] + 1)) == 0)
#endif

inline die(i) {
    forget(i);
    life[i] = GONE;
    abandon(i);
    p = 0;
    do
    :: p < PARTITIONS && !registered[i] -> sent[AT(i, p)] = 0; p++ /* counted already */
    :: else -> break
    od;
    p = 0;
    do
    :: p < LIVES ->
        if
        :: locked[p] == ME(i) -> locked[p] = NOBODY /* the server rolls its take-over back */
        :: else
        fi;
        p++
    :: else -> break
    od
}

/* what life i does with partition q */
#define WORK(i, q) \
    :: atomic { life[i] == ALIVE && held[AT(i, q)] == 0 && owner[q] == NOBODY && request[i].kind == NONE && registered[i] && leased[i] != EXPIRED -> \
        request[i].kind = CLAIM; request[i].no = known[i]; request[i].gives = q + 1; printf("relay %d claims partition %d\n", ME(i), q) } \
    :: atomic { life[i] == ALIVE && held[AT(i, q)] == 0 && owner[q] == ME(i) && request[i].kind == NONE -> \
        d_step { forget(i); life[i] = VOID; printf("relay %d finds partition %d to be its own\n", ME(i), q) } } \
    :: atomic { life[i] == ALIVE && held[AT(i, q)] != 0 && MAY_SEND(i) && FREE_TO_SEND(i, q) && sent[AT(i, q)] < MESSAGES && OPEN(i) < WINDOW && \
        !(request[i].kind == SETTLE && request[i].gives == q + 1) -> d_step { send(i, q) } } \
    :: atomic { life[i] == ALIVE && held[AT(i, q)] != 0 && request[i].kind == NONE && ANSWERED(i, q) -> d_step { ask_to_settle(i, 0) } } \
    :: atomic { life[i] == ALIVE && held[AT(i, q)] != 0 && request[i].kind == NONE && READY_TO_GIVE(i, q) && returns > 0 -> \
        d_step { returns--; ask_to_settle(i, q + 1) } }

#ifdef GIVES_BACK_UNSETTLED
#define READY_TO_GIVE(i, q) true
#else
#define READY_TO_GIVE(i, q) (flying[AT(i, q)] == 0)
#endif

/* take-over of life v by life i, in the two steps between which others run */
#define TAKE(i, v) \
    :: atomic { v < LIVES && v != i && life[i] == ALIVE && registered[v] && leased[v] == EXPIRED && locked[v] == NOBODY -> \
        locked[v] = ME(i); seen[v] = no[v]; printf("relay %d begins to take over %d\n", ME(i), ME(v)) } \
    :: atomic { v < LIVES && locked[v] == ME(i) && life[i] != GONE -> d_step { take_over(v); printf("relay %d takes over %d\n", ME(i), ME(v)) } }

#if LIVES > 2
#define LIVING_COUNT (LIVING(0) + LIVING(1) + LIVING(2))
#else
#define LIVING_COUNT (LIVING(0) + LIVING(1))
#endif

proctype Relay(byte i) {
end:
    do
    :: atomic { life[i] == UNBORN && (i == 0 || life[i - 1] != UNBORN) && LIVING_COUNT < 2 ->
        d_step { life[i] = ALIVE; registered[i] = true; cursor[i] = true; leased[i] = VALID; printf("relay %d registers\n", ME(i)) } }
    WORK(i, 0)
#if PARTITIONS > 1
    WORK(i, 1)
#endif
    TAKE(i, 0)
    TAKE(i, 1)
#if LIVES > 2
    TAKE(i, 2)
#endif
    :: atomic { life[i] == VOID && cursor[i] -> d_step { reload(i); printf("relay %d loads its session again\n", ME(i)) } }
    /* heartbeat: either it is renewed, or there is nothing to renew */
    :: atomic { LIVING(i) && registered[i] && leased[i] != VALID && locked[i] == NOBODY -> leased[i] = VALID; printf("relay %d renews its lease\n", ME(i)) }
    :: atomic { LIVING(i) && !registered[i] -> d_step { die(i); printf("relay %d was taken over, and ends\n", ME(i)) } }
    od
}

/* ---- the database: whatever is on its way gets there, in any order */

/* some partition of the request may come into the row or stay out of it */
#if PARTITIONS == 1
#define OUTSIDE(i) (row[i] == NOWHERE)
#else
#define OUTSIDE(i) (row[AT(i, 0)] == NOWHERE || row[AT(i, 1)] == NOWHERE)
#endif

#define SERVE(i, q, listens) \
    :: atomic { q.kind == CLAIM && locked[i] == NOBODY -> d_step { claim(i, q.gives - 1, q, listens); clear(q) } } \
    :: atomic { q.kind == SETTLE -> d_step { settle(i, q, listens, true) } } \
    :: atomic { q.kind == SETTLE && OUTSIDE(i) -> d_step { settle(i, q, listens, false) } }

proctype Database(byte i) {
end:
    do
    SERVE(i, request[i], true)
    SERVE(i, late[i], false)
    od
}

/* ---- the broker: whatever is on its way gets there, in any order. A copy that is lost is one that has not got there yet */

inline store(q, n) {
    disordered = disordered || (n > 1 && copies[OF(q, n)] == 0 && copies[OF(q, n) - 1] == 0);
    unexcused = unexcused || copies[OF(q, n)] > may[OF(q, n)];
    copies[OF(q, n)]++;
    to = 0;
    m = 0;
    do
    :: m < PARTITIONS * (MESSAGES + 1) ->
        if
        :: copies[m] > 1 -> to = to + copies[m] - 1
        :: else
        fi;
        m++
    :: else -> break
    od;
    overrun = overrun || to > excused;
    printf("the broker stores message %d of partition %d\n", n, q)
}

#define ARRIVE(i, q, n) \
    :: atomic { flying[AT(i, q)] & BIT(n) -> d_step { flying[AT(i, q)] = flying[AT(i, q)] - BIT(n); store(q, n) } }

#define STRAY(q, n) \
    :: atomic { i == 0 && astray[OF(q, n)] > 0 -> d_step { astray[OF(q, n)]--; store(q, n) } }

proctype Broker(byte i) {
end:
    do
    ARRIVE(i, 0, 1) STRAY(0, 1)
#if MESSAGES > 1
    ARRIVE(i, 0, 2) STRAY(0, 2)
#endif
#if MESSAGES > 2
    ARRIVE(i, 0, 3) STRAY(0, 3)
#endif
#if PARTITIONS > 1
    ARRIVE(i, 1, 1) STRAY(1, 1)
#if MESSAGES > 1
    ARRIVE(i, 1, 2) STRAY(1, 2)
#endif
#if MESSAGES > 2
    ARRIVE(i, 1, 3) STRAY(1, 3)
#endif
#endif
    od
}

/* ---- what goes wrong */

inline lose_answer(i) {
    abandon(i);
    forget(i);
    life[i] = VOID;
    excused = excused + WINDOW
}

/* the publisher gives up waiting: the message may have been stored, or may be yet, and is sent again */
inline doubt(i, q) {
    m = sent[AT(i, q)];
    flying[AT(i, q)] = flying[AT(i, q)] - BIT(m);
    astray[OF(q, m)]++;
    may[OF(q, m)]++;
    sent[AT(i, q)]--;
    excused++
}

#define HARM(i) \
    :: atomic { faults > 0 && LIVING(i) -> d_step { faults--; die(i); printf("relay %d crashes\n", ME(i)) } } \
    :: atomic { faults > 0 && LIVING(i) && registered[i] && leased[i] == VALID -> faults--; leased[i] = OVER; printf("relay %d pauses, and its lease is over\n", ME(i)) } \
    :: atomic { faults > 0 && life[i] == ALIVE && request[i].kind != NONE -> d_step { faults--; lose_answer(i); printf("the answer to relay %d is lost\n", ME(i)) } } \
    :: atomic { registered[i] && (leased[i] == OVER || life[i] == GONE) && leased[i] != EXPIRED -> leased[i] = EXPIRED }

#define DOUBT(i, q) \
    :: atomic { faults > 0 && flying[AT(i, q)] != 0 && flying[AT(i, q)] == BIT(sent[AT(i, q)]) -> \
        d_step { faults--; doubt(i, q); printf("relay %d does not know whether the broker took a message\n", ME(i)) } }

proctype Trouble(byte i) {
end:
    do
    HARM(i)
    DOUBT(i, 0)
#if PARTITIONS > 1
    DOUBT(i, 1)
#endif
    od
}

init {
    atomic {
        p = 0;
        do
        :: p < LIVES * PARTITIONS -> row[p] = NOWHERE; p++
        :: else -> break
        od;
        p = 0;
        do
        :: p < LIVES -> run Relay(p); run Database(p); run Broker(p); run Trouble(p); p++
        :: else -> break
        od
    }
}

/* ---- the properties */

#define SETTLED(p) (((owner[p] == NOBODY || row[AT(owner[p] - 1, p)] == NOWHERE) && seq[p] == MESSAGES) || \
    (owner[p] != NOBODY && row[AT(owner[p] - 1, p)] == MESSAGES))

ltl stored { [] !unstored }       /* what is settled, the broker has */
ltl ordered { [] !disordered }    /* first copies of a key come in order */
ltl excusable { [] !unexcused }   /* a message comes again only if it was sent, and not settled, when something went wrong */
ltl bounded { [] !overrun }       /* at most one window for each thing that went wrong */
ltl alone { [] !intruded }        /* only the owner sends */
ltl fenced { [] !meddled }        /* only the owner's settles are taken */
/* the six above at once: they are looked at in the same states */
ltl safe { [] !(unstored || disordered || unexcused || overrun || intruded || meddled) }
#if PARTITIONS == 1
ltl drained { <> [] SETTLED(0) }  /* when faults end, everything is published and settled */
#else
ltl drained { <> [] (SETTLED(0) && SETTLED(1)) }
#endif

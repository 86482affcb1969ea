CREATE SCHEMA pgboss;
CREATE TYPE pgboss.job_state AS ENUM ('created', 'retry', 'active', 'completed', 'cancelled', 'failed');
CREATE TABLE pgboss.job (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    name text NOT NULL,
    priority integer NOT NULL DEFAULT 0,
    data jsonb,
    state pgboss.job_state NOT NULL DEFAULT 'created',
    retry_limit integer NOT NULL DEFAULT 2,
    retry_count integer NOT NULL DEFAULT 0,
    retry_delay integer NOT NULL DEFAULT 0,
    retry_backoff boolean NOT NULL DEFAULT false,
    start_after timestamptz NOT NULL DEFAULT now(),
    started_on timestamptz,
    singleton_key text,
    singleton_on timestamp without time zone,
    expire_in interval NOT NULL DEFAULT interval '15 minutes',
    created_on timestamptz NOT NULL DEFAULT now(),
    completed_on timestamptz,
    keep_until timestamptz NOT NULL DEFAULT now() + interval '14 days',
    output jsonb,
    dead_letter text,
    policy text,
    blocked boolean NOT NULL DEFAULT false
) PARTITION BY LIST (name);
ALTER TABLE pgboss.job ADD PRIMARY KEY (name, id);
CREATE TABLE pgboss.jcommon PARTITION OF pgboss.job DEFAULT;
CREATE UNIQUE INDEX job_i1 ON pgboss.jcommon (name, coalesce(singleton_key, ''))
    WHERE state = 'created' AND policy = 'short';
CREATE UNIQUE INDEX job_i2 ON pgboss.jcommon (name, coalesce(singleton_key, ''))
    WHERE state = 'active' AND policy = 'singleton';
CREATE UNIQUE INDEX job_i3 ON pgboss.jcommon (name, state, coalesce(singleton_key, ''))
    WHERE state <= 'active' AND policy = 'stately';
CREATE INDEX job_i5 ON pgboss.jcommon (name, start_after) INCLUDE (priority, created_on, id) WHERE state < 'active';
CREATE UNIQUE INDEX job_i8 ON pgboss.jcommon (name, singleton_key)
    WHERE state IN ('active', 'retry', 'failed') AND policy = 'key_strict_fifo';

CREATE SCHEMA bullmq;
CREATE TYPE bullmq.job_state AS ENUM ('waiting', 'active', 'completed', 'failed', 'delayed', 'waiting-children');
CREATE TABLE bullmq.meta (queue text NOT NULL, field text NOT NULL, value text, PRIMARY KEY (queue, field));
CREATE TABLE bullmq.job (
    queue text NOT NULL, id text NOT NULL, seq bigint NOT NULL, name text NOT NULL, state bullmq.job_state NOT NULL,
    data jsonb NOT NULL DEFAULT '{}', opts jsonb NOT NULL DEFAULT '{}', priority integer NOT NULL DEFAULT 0,
    delay_ms bigint NOT NULL DEFAULT 0, max_attempts integer NOT NULL DEFAULT 1, attempts_made integer NOT NULL DEFAULT 0,
    attempts_started integer NOT NULL DEFAULT 0, progress jsonb, return_value jsonb, failed_reason text, stacktrace jsonb,
    deferred_failure text, processed_by text, added_at_ms bigint NOT NULL, process_at_ms bigint, processed_at_ms bigint,
    finished_at_ms bigint, lock_token text, locked_until_ms bigint, stalled_count integer NOT NULL DEFAULT 0, dedup_id text,
    scheduler_id text, parent_queue text, parent_id text, parent_key text, pending_deps integer NOT NULL DEFAULT 0,
    stalled_marked boolean NOT NULL DEFAULT false, PRIMARY KEY (queue, id)
);
CREATE INDEX ON bullmq.job (queue, priority, seq) WHERE state = 'waiting';
CREATE INDEX ON bullmq.job (queue, process_at_ms) WHERE state = 'delayed';
CREATE INDEX ON bullmq.job (queue, locked_until_ms) WHERE state = 'active';
CREATE INDEX ON bullmq.job (queue, state, finished_at_ms) WHERE state IN ('completed', 'failed');

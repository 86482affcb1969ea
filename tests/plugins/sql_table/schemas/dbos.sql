CREATE SCHEMA dbos;
CREATE TABLE dbos.workflow_status (
    workflow_uuid text PRIMARY KEY, status text, name text, authenticated_user text, assumed_role text,
    authenticated_roles text, request text, output text, error text, executor_id text,
    created_at bigint NOT NULL DEFAULT (extract(epoch FROM now()) * 1000)::bigint,
    updated_at bigint NOT NULL DEFAULT (extract(epoch FROM now()) * 1000)::bigint,
    application_version text, application_id text, class_name varchar(255), config_name varchar(255),
    recovery_attempts bigint DEFAULT 0, queue_name text, workflow_timeout_ms bigint, workflow_deadline_epoch_ms bigint,
    inputs text, started_at_epoch_ms bigint, deduplication_id text, priority integer NOT NULL DEFAULT 0,
    queue_partition_key text, forked_from text, owner_xid text, parent_workflow_id text, serialization text,
    delay_until_epoch_ms bigint, was_forked_from boolean NOT NULL DEFAULT false, rate_limited boolean NOT NULL DEFAULT false,
    completed_at bigint, attributes jsonb, schedule_name text, debounce_deadline_epoch_ms bigint,
    is_debounced boolean NOT NULL DEFAULT false, application_name text, creator_xid text
);
CREATE INDEX ON dbos.workflow_status (created_at);
CREATE INDEX ON dbos.workflow_status (status, created_at)
    WHERE status IN ('ERROR', 'CANCELLED', 'MAX_RECOVERY_ATTEMPTS_EXCEEDED');
CREATE UNIQUE INDEX ON dbos.workflow_status (queue_name, deduplication_id) WHERE deduplication_id IS NOT NULL;
CREATE TABLE dbos.workflow_output (
    workflow_uuid text PRIMARY KEY, output text, error text, retention_timestamp bigint NOT NULL DEFAULT 0
);

CREATE TABLE solid_queue_jobs (
    id bigserial PRIMARY KEY,
    queue_name character varying NOT NULL,
    class_name character varying NOT NULL,
    arguments text,
    priority integer NOT NULL DEFAULT 0,
    active_job_id character varying,
    scheduled_at timestamp(6) without time zone,
    finished_at timestamp(6) without time zone,
    concurrency_key character varying,
    created_at timestamp(6) without time zone NOT NULL,
    updated_at timestamp(6) without time zone NOT NULL
);
CREATE INDEX index_solid_queue_jobs_on_finished_at ON solid_queue_jobs (finished_at);
CREATE TABLE solid_queue_ready_executions (
    id bigserial PRIMARY KEY, job_id bigint NOT NULL REFERENCES solid_queue_jobs ON DELETE CASCADE,
    queue_name character varying NOT NULL, priority integer NOT NULL DEFAULT 0,
    created_at timestamp(6) without time zone NOT NULL);
CREATE TABLE solid_queue_scheduled_executions (
    id bigserial PRIMARY KEY, job_id bigint NOT NULL REFERENCES solid_queue_jobs ON DELETE CASCADE,
    queue_name character varying NOT NULL, priority integer NOT NULL DEFAULT 0,
    scheduled_at timestamp(6) without time zone NOT NULL, created_at timestamp(6) without time zone NOT NULL);
CREATE TABLE solid_queue_claimed_executions (
    id bigserial PRIMARY KEY, job_id bigint NOT NULL REFERENCES solid_queue_jobs ON DELETE CASCADE,
    process_id bigint, created_at timestamp(6) without time zone NOT NULL);
CREATE TABLE solid_queue_blocked_executions (
    id bigserial PRIMARY KEY, job_id bigint NOT NULL REFERENCES solid_queue_jobs ON DELETE CASCADE,
    queue_name character varying NOT NULL, priority integer NOT NULL DEFAULT 0, concurrency_key character varying NOT NULL,
    expires_at timestamp(6) without time zone NOT NULL, created_at timestamp(6) without time zone NOT NULL);
CREATE TABLE solid_queue_failed_executions (
    id bigserial PRIMARY KEY, job_id bigint NOT NULL REFERENCES solid_queue_jobs ON DELETE CASCADE,
    error text, created_at timestamp(6) without time zone NOT NULL);
CREATE TABLE solid_queue_processes (
    id bigserial PRIMARY KEY, kind character varying NOT NULL, last_heartbeat_at timestamp(6) without time zone NOT NULL,
    pid integer NOT NULL, name character varying NOT NULL, created_at timestamp(6) without time zone NOT NULL);
CREATE UNIQUE INDEX ON solid_queue_ready_executions (job_id);
CREATE UNIQUE INDEX ON solid_queue_scheduled_executions (job_id);
CREATE UNIQUE INDEX ON solid_queue_claimed_executions (job_id);
CREATE UNIQUE INDEX ON solid_queue_blocked_executions (job_id);
CREATE UNIQUE INDEX ON solid_queue_failed_executions (job_id);
CREATE TABLE solid_queue_pauses (
    id bigserial PRIMARY KEY, queue_name character varying NOT NULL UNIQUE,
    created_at timestamp(6) without time zone NOT NULL);
CREATE TABLE solid_queue_semaphores (
    id bigserial PRIMARY KEY, key character varying NOT NULL UNIQUE, value integer NOT NULL DEFAULT 1,
    expires_at timestamp(6) without time zone NOT NULL, created_at timestamp(6) without time zone NOT NULL,
    updated_at timestamp(6) without time zone NOT NULL);

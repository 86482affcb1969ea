CREATE TABLE solid_queue_jobs (
    id integer NOT NULL PRIMARY KEY AUTOINCREMENT,
    queue_name varchar NOT NULL,
    class_name varchar NOT NULL,
    arguments text,
    priority integer NOT NULL DEFAULT 0,
    active_job_id varchar,
    scheduled_at datetime(6),
    finished_at datetime(6),
    concurrency_key varchar,
    created_at datetime(6) NOT NULL,
    updated_at datetime(6) NOT NULL
);
CREATE INDEX index_solid_queue_jobs_on_finished_at ON solid_queue_jobs (finished_at);
CREATE TABLE solid_queue_ready_executions (
    id integer NOT NULL PRIMARY KEY AUTOINCREMENT, job_id bigint NOT NULL REFERENCES solid_queue_jobs (id) ON DELETE CASCADE,
    queue_name varchar NOT NULL, priority integer NOT NULL DEFAULT 0,
    created_at datetime(6) NOT NULL);
CREATE TABLE solid_queue_scheduled_executions (
    id integer NOT NULL PRIMARY KEY AUTOINCREMENT, job_id bigint NOT NULL REFERENCES solid_queue_jobs (id) ON DELETE CASCADE,
    queue_name varchar NOT NULL, priority integer NOT NULL DEFAULT 0,
    scheduled_at datetime(6) NOT NULL, created_at datetime(6) NOT NULL);
CREATE TABLE solid_queue_claimed_executions (
    id integer NOT NULL PRIMARY KEY AUTOINCREMENT, job_id bigint NOT NULL REFERENCES solid_queue_jobs (id) ON DELETE CASCADE,
    process_id bigint, created_at datetime(6) NOT NULL);
CREATE TABLE solid_queue_blocked_executions (
    id integer NOT NULL PRIMARY KEY AUTOINCREMENT, job_id bigint NOT NULL REFERENCES solid_queue_jobs (id) ON DELETE CASCADE,
    queue_name varchar NOT NULL, priority integer NOT NULL DEFAULT 0, concurrency_key varchar NOT NULL,
    expires_at datetime(6) NOT NULL, created_at datetime(6) NOT NULL);
CREATE TABLE solid_queue_failed_executions (
    id integer NOT NULL PRIMARY KEY AUTOINCREMENT, job_id bigint NOT NULL REFERENCES solid_queue_jobs (id) ON DELETE CASCADE,
    error text, created_at datetime(6) NOT NULL);
CREATE TABLE solid_queue_processes (
    id integer NOT NULL PRIMARY KEY AUTOINCREMENT, kind varchar NOT NULL, last_heartbeat_at datetime(6) NOT NULL,
    pid integer NOT NULL, name varchar NOT NULL, created_at datetime(6) NOT NULL);
CREATE UNIQUE INDEX index_1 ON solid_queue_ready_executions (job_id);
CREATE UNIQUE INDEX index_2 ON solid_queue_scheduled_executions (job_id);
CREATE UNIQUE INDEX index_3 ON solid_queue_claimed_executions (job_id);
CREATE UNIQUE INDEX index_4 ON solid_queue_blocked_executions (job_id);
CREATE UNIQUE INDEX index_5 ON solid_queue_failed_executions (job_id);
CREATE TABLE solid_queue_pauses (
    id integer NOT NULL PRIMARY KEY AUTOINCREMENT, queue_name varchar NOT NULL UNIQUE, created_at datetime(6) NOT NULL);
CREATE TABLE solid_queue_semaphores (
    id integer NOT NULL PRIMARY KEY AUTOINCREMENT, key varchar NOT NULL UNIQUE, value integer NOT NULL DEFAULT 1,
    expires_at datetime(6) NOT NULL, created_at datetime(6) NOT NULL, updated_at datetime(6) NOT NULL);

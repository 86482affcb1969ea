CREATE TABLE solid_queue_jobs (
    id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    queue_name varchar(255) NOT NULL,
    class_name varchar(255) NOT NULL,
    arguments text,
    priority integer NOT NULL DEFAULT 0,
    active_job_id varchar(255),
    scheduled_at datetime(6),
    finished_at datetime(6),
    concurrency_key varchar(255),
    created_at datetime(6) NOT NULL,
    updated_at datetime(6) NOT NULL
);
CREATE INDEX index_solid_queue_jobs_on_finished_at ON solid_queue_jobs (finished_at);
CREATE TABLE solid_queue_ready_executions (
    id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY, job_id bigint NOT NULL,
    queue_name varchar(255) NOT NULL, priority integer NOT NULL DEFAULT 0,
    created_at datetime(6) NOT NULL,
    FOREIGN KEY (job_id) REFERENCES solid_queue_jobs (id) ON DELETE CASCADE);
CREATE TABLE solid_queue_scheduled_executions (
    id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY, job_id bigint NOT NULL,
    queue_name varchar(255) NOT NULL, priority integer NOT NULL DEFAULT 0,
    scheduled_at datetime(6) NOT NULL, created_at datetime(6) NOT NULL,
    FOREIGN KEY (job_id) REFERENCES solid_queue_jobs (id) ON DELETE CASCADE);
CREATE TABLE solid_queue_claimed_executions (
    id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY, job_id bigint NOT NULL,
    process_id bigint, created_at datetime(6) NOT NULL,
    FOREIGN KEY (job_id) REFERENCES solid_queue_jobs (id) ON DELETE CASCADE);
CREATE TABLE solid_queue_blocked_executions (
    id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY, job_id bigint NOT NULL,
    queue_name varchar(255) NOT NULL, priority integer NOT NULL DEFAULT 0, concurrency_key varchar(255) NOT NULL,
    expires_at datetime(6) NOT NULL, created_at datetime(6) NOT NULL,
    FOREIGN KEY (job_id) REFERENCES solid_queue_jobs (id) ON DELETE CASCADE);
CREATE TABLE solid_queue_failed_executions (
    id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY, job_id bigint NOT NULL,
    error text, created_at datetime(6) NOT NULL,
    FOREIGN KEY (job_id) REFERENCES solid_queue_jobs (id) ON DELETE CASCADE);
CREATE TABLE solid_queue_processes (
    id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY, kind varchar(255) NOT NULL, last_heartbeat_at datetime(6) NOT NULL,
    pid integer NOT NULL, name varchar(255) NOT NULL, created_at datetime(6) NOT NULL);
CREATE UNIQUE INDEX index_1 ON solid_queue_ready_executions (job_id);
CREATE UNIQUE INDEX index_2 ON solid_queue_scheduled_executions (job_id);
CREATE UNIQUE INDEX index_3 ON solid_queue_claimed_executions (job_id);
CREATE UNIQUE INDEX index_4 ON solid_queue_blocked_executions (job_id);
CREATE UNIQUE INDEX index_5 ON solid_queue_failed_executions (job_id);
CREATE TABLE solid_queue_pauses (
    id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY, queue_name varchar(255) NOT NULL UNIQUE, created_at datetime(6) NOT NULL);
CREATE TABLE solid_queue_semaphores (
    id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY, `key` varchar(255) NOT NULL UNIQUE, value integer NOT NULL DEFAULT 1,
    expires_at datetime(6) NOT NULL, created_at datetime(6) NOT NULL, updated_at datetime(6) NOT NULL);

CREATE SCHEMA graphile_worker;
CREATE TABLE graphile_worker._private_tasks (
    id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    identifier text NOT NULL UNIQUE CHECK (length(identifier) <= 128));
CREATE TABLE graphile_worker._private_job_queues (
    id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    queue_name text NOT NULL UNIQUE CHECK (length(queue_name) <= 128),
    locked_at timestamptz, locked_by text,
    is_available boolean GENERATED ALWAYS AS (locked_at IS NULL) STORED NOT NULL);
CREATE TABLE graphile_worker._private_jobs (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    job_queue_id int,
    task_id int NOT NULL,
    payload json NOT NULL DEFAULT '{}',
    priority smallint NOT NULL DEFAULT 0,
    run_at timestamptz NOT NULL DEFAULT now(),
    attempts smallint NOT NULL DEFAULT 0,
    max_attempts smallint NOT NULL DEFAULT 25 CONSTRAINT jobs_max_attempts_check CHECK (max_attempts >= 1),
    last_error text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    key text UNIQUE CONSTRAINT jobs_key_check CHECK (length(key) > 0 AND length(key) <= 512),
    locked_at timestamptz,
    locked_by text,
    revision integer NOT NULL DEFAULT 0,
    flags jsonb,
    is_available boolean GENERATED ALWAYS AS (locked_at IS NULL AND attempts < max_attempts) STORED NOT NULL
);
CREATE INDEX jobs_main_index ON graphile_worker._private_jobs (priority, run_at) INCLUDE (id, task_id, job_queue_id)
    WHERE is_available = true;
CREATE FUNCTION graphile_worker.reschedule_jobs(
    job_ids bigint[], run_at timestamptz DEFAULT NULL, priority integer DEFAULT NULL, attempts integer DEFAULT NULL,
    max_attempts integer DEFAULT NULL
) RETURNS SETOF graphile_worker._private_jobs LANGUAGE sql AS $$
    UPDATE graphile_worker._private_jobs AS jobs SET
        run_at = coalesce(reschedule_jobs.run_at, jobs.run_at),
        priority = coalesce(reschedule_jobs.priority::smallint, jobs.priority),
        attempts = coalesce(reschedule_jobs.attempts::smallint, jobs.attempts),
        max_attempts = coalesce(reschedule_jobs.max_attempts::smallint, jobs.max_attempts),
        updated_at = now()
    WHERE id = ANY (job_ids) AND (locked_at IS NULL OR locked_at < now() - interval '4 hours') RETURNING *
$$;

CREATE FUNCTION graphile_worker.permanently_fail_jobs(job_ids bigint[], error_message text DEFAULT NULL)
RETURNS SETOF graphile_worker._private_jobs LANGUAGE sql AS $$
    UPDATE graphile_worker._private_jobs AS jobs SET
        last_error = coalesce(error_message, 'Manually marked as failed'), attempts = max_attempts, updated_at = now()
    WHERE id = ANY (job_ids) AND (locked_at IS NULL OR locked_at < now() - interval '4 hours') RETURNING *
$$;

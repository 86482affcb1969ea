CREATE TABLE good_jobs (
    id uuid NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    queue_name text,
    priority integer,
    serialized_params jsonb,
    scheduled_at timestamp(6) without time zone,
    performed_at timestamp(6) without time zone,
    finished_at timestamp(6) without time zone,
    error text,
    created_at timestamp(6) without time zone NOT NULL,
    updated_at timestamp(6) without time zone NOT NULL,
    active_job_id uuid,
    concurrency_key text,
    cron_key text,
    retried_good_job_id uuid,
    cron_at timestamp(6) without time zone,
    batch_id uuid,
    batch_callback_id uuid,
    is_discrete boolean,
    executions_count integer,
    job_class text,
    error_event smallint,
    labels text[],
    locked_by_id uuid,
    locked_at timestamp(6) without time zone,
    lock_type smallint
);
CREATE TABLE good_job_executions (
    id uuid NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    created_at timestamp(6) without time zone NOT NULL,
    updated_at timestamp(6) without time zone NOT NULL,
    active_job_id uuid NOT NULL,
    job_class text,
    queue_name text,
    serialized_params jsonb,
    scheduled_at timestamp(6) without time zone,
    finished_at timestamp(6) without time zone,
    error text,
    error_event smallint,
    error_backtrace text[],
    process_id uuid,
    duration interval
);
CREATE INDEX index_good_job_executions_on_active_job_id_and_created_at
    ON good_job_executions (active_job_id, created_at);
CREATE INDEX index_good_jobs_on_scheduled_at ON good_jobs (scheduled_at) WHERE finished_at IS NULL;
CREATE INDEX index_good_jobs_jobs_on_finished_at ON good_jobs (finished_at)
    WHERE retried_good_job_id IS NULL AND finished_at IS NOT NULL;
CREATE UNIQUE INDEX index_good_jobs_on_cron_key_and_cron_at_cond ON good_jobs (cron_key, cron_at)
    WHERE cron_key IS NOT NULL;
CREATE TABLE good_job_settings (
    id uuid NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    created_at timestamp(6) without time zone NOT NULL,
    updated_at timestamp(6) without time zone NOT NULL,
    key text,
    value jsonb
);
CREATE UNIQUE INDEX index_good_job_settings_on_key ON good_job_settings (key);
CREATE TABLE good_job_processes (
    id uuid NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    created_at timestamp(6) without time zone NOT NULL,
    updated_at timestamp(6) without time zone NOT NULL,
    state jsonb,
    lock_type smallint
);

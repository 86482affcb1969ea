CREATE TABLE que_jobs (
    priority smallint NOT NULL DEFAULT 100,
    run_at timestamptz NOT NULL DEFAULT now(),
    id bigserial PRIMARY KEY,
    job_class text NOT NULL,
    error_count integer NOT NULL DEFAULT 0,
    last_error_message text,
    queue text NOT NULL DEFAULT 'default',
    last_error_backtrace text,
    finished_at timestamptz,
    expired_at timestamptz,
    args jsonb NOT NULL DEFAULT '[]',
    data jsonb NOT NULL DEFAULT '{}',
    job_schema_version integer NOT NULL,
    kwargs jsonb NOT NULL DEFAULT '{}',
    CONSTRAINT error_length CHECK (char_length(last_error_message) <= 500 AND char_length(last_error_backtrace) <= 10000),
    CONSTRAINT job_class_length CHECK (char_length(job_class) <= 200),
    CONSTRAINT queue_length CHECK (char_length(queue) <= 100),
    CONSTRAINT valid_args CHECK (jsonb_typeof(args) = 'array')
);
CREATE INDEX que_poll_idx ON que_jobs (queue, priority, run_at, id) WHERE finished_at IS NULL AND expired_at IS NULL;
CREATE UNLOGGED TABLE que_lockers (
    pid integer NOT NULL PRIMARY KEY,
    worker_count integer NOT NULL,
    worker_priorities integer[] NOT NULL,
    ruby_pid integer NOT NULL,
    ruby_hostname text NOT NULL,
    queues text[] NOT NULL,
    listening boolean NOT NULL,
    job_schema_version integer DEFAULT 1
);

CREATE TABLE failed_jobs (
    id bigserial PRIMARY KEY,
    uuid varchar(255) NOT NULL UNIQUE,
    connection varchar(255) NOT NULL,
    queue varchar(255) NOT NULL,
    payload text NOT NULL,
    exception text NOT NULL,
    failed_at timestamp(0) NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE INDEX failed_jobs_index ON failed_jobs (connection, queue, failed_at);

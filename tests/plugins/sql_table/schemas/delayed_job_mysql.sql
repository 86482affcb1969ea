CREATE TABLE `delayed_jobs` (
    `id` bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    `priority` int NOT NULL DEFAULT 0,
    `attempts` int NOT NULL DEFAULT 0,
    `handler` text NOT NULL,
    `last_error` text,
    `run_at` datetime(6),
    `locked_at` datetime(6),
    `failed_at` datetime(6),
    `locked_by` varchar(255),
    `queue` varchar(255),
    `created_at` datetime(6),
    `updated_at` datetime(6),
    INDEX `delayed_jobs_priority` (`priority`, `run_at`)
) ENGINE=InnoDB

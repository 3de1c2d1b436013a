//! Starts real brokers for the integration tests.

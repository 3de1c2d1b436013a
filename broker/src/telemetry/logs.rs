//! Log lines: on stderr, for people on a terminal and as JSON otherwise, unless the configuration says which.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Whether `level` can be used; the error is a sentence about it.
pub fn check(level: &str) -> Result<(), String> {
    filter(level).map(drop)
}

fn filter(level: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(level).map_err(|error| format!("log_level: {level:?} is not a filter: {error}"))
}

/// Begins to write log lines. Called once; the error is a sentence about `level`.
pub fn init(format: LogFormat, level: &str) -> Result<(), String> {
    let filter = filter(level)?;
    let is_terminal = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let is_human = match format {
        LogFormat::Human => true,
        LogFormat::Json => false,
        LogFormat::Auto => is_terminal,
    };
    let started = if is_human {
        lines.with_ansi(is_terminal).with_target(false).try_init()
    } else {
        lines.json().flatten_event(true).try_init()
    };
    started.map_err(|error| error.to_string())
}

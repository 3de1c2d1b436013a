//! Log lines: on stderr, for people on a terminal and as JSON otherwise, unless the configuration says which. What is
//! written can be changed while the broker runs.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::reload::Handle;
use tracing_subscriber::{EnvFilter, Registry, fmt, prelude::*, reload};

use crate::config::LogFormat;

/// Which log lines are written. Clones are the same.
#[derive(Clone)]
pub struct LogLevel {
    handle: Handle<EnvFilter, Registry>,
    now: Arc<Mutex<String>>,
}

impl LogLevel {
    /// The filter that is in force.
    pub fn get(&self) -> String {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Another filter, from now on until the broker stops. The error is a sentence about it.
    pub fn set(&self, level: &str) -> Result<(), String> {
        let new = filter(level)?;
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        // While the old one is in force, so that a log that falls silent says why.
        tracing::warn!(before = *now, after = level, "the level of the log is changed, until the broker stops");
        self.handle.reload(new).map_err(|error| error.to_string())?;
        level.clone_into(&mut now);
        Ok(())
    }
}

/// Whether `level` can be used; the error is a sentence about it.
pub fn check(level: &str) -> Result<(), String> {
    filter(level).map(drop)
}

fn filter(level: &str) -> Result<EnvFilter, String> {
    if level.trim().is_empty() {
        return Err("log_level: it is empty; write error, warn, info, debug or trace".to_owned());
    }
    // A bare word that is no level would be taken for a part of the program, and silence all others.
    let is_level = |part: &str| part.contains(['=', '[']) || part.parse::<LevelFilter>().is_ok();
    if let Some(word) = level.split(',').find(|part| !part.is_empty() && !is_level(part)) {
        return Err(format!(
            "log_level: {word:?} is neither a level (error, warn, info, debug, trace, off) nor of the form part=level"
        ));
    }
    EnvFilter::try_new(level).map_err(|error| format!("log_level: {level:?} is not a filter: {error}"))
}

/// Begins to write log lines. Called once; the error is a sentence about `level`.
pub fn init(format: LogFormat, level: &str) -> Result<LogLevel, String> {
    let (filter, handle) = reload::Layer::new(filter(level)?);
    let is_terminal = std::io::stderr().is_terminal();
    let lines = fmt::layer().with_writer(std::io::stderr);
    let is_human = match format {
        LogFormat::Human => true,
        LogFormat::Json => false,
        LogFormat::Auto => is_terminal,
    };
    let lines = if is_human {
        lines.with_ansi(is_terminal).with_target(false).boxed()
    } else {
        lines.json().flatten_event(true).boxed()
    };
    tracing_subscriber::registry().with(filter).with(lines).try_init().map_err(|error| error.to_string())?;
    Ok(LogLevel { handle, now: Arc::new(Mutex::new(level.to_owned())) })
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn a_misspelt_level_silences_nothing() {
        for good in ["info", "WARN", "off", "info,corelane_log=debug", "corelane_broker::shard=trace,warn"] {
            check(good).unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        for bad in ["inof", "info,debgu", "info, warn", "", "corelane_log=louder"] {
            let error = check(bad).expect_err(bad);
            assert!(error.contains("log_level"), "{error}");
        }
    }
}

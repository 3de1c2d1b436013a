//! The start of what publishes: a broker that is away is waited for as long as a message would be.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::error::CliError;

/// Between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// Attempts it until it works, a failure comes that no retry can help, or the time is up; says once what is in the way, and
/// which option, if any, says how long.
pub(crate) async fn patiently<T>(
    (patience, option): (Duration, &str),
    attempt: impl AsyncFn() -> Result<T, CliError>,
) -> Result<T, CliError> {
    let deadline = Instant::now() + patience;
    let mut failure: Option<CliError> = None;
    loop {
        let attempted = match &failure {
            None => attempt().await,
            Some(_) => match timeout_at(deadline, attempt()).await {
                Ok(attempted) => attempted,
                Err(_) => return Err(failure.expect("there was one")),
            },
        };
        match attempted {
            Err(error @ CliError::Call(_)) if error.is_retryable() && Instant::now() + PAUSE < deadline => {
                if failure.is_none() {
                    eprintln!("corelane: {error}; trying for {} s{option}", patience.as_secs());
                }
                failure = Some(error);
                sleep(PAUSE).await;
            }
            other => return other,
        }
    }
}

//! Watches on etcd. A task of its own reads the stream, so that a caller may stop waiting at any time without losing a
//! change, and begins a stream that ended again where it was, with growing pauses of random length. What it cannot go on
//! from (history was forgotten, etcd went back, it is away for too long) is the watch's last word.

use std::time::{Duration, Instant};

use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream};
use tokio::sync::mpsc;

use super::convert::{entry_of, error_of, error_of_cancel, revision_of};
use super::link::{Connected, Link, in_time};
use crate::limits::{ETCD_REQUEST_MAX, WATCH_BATCHES_MAX, WATCH_PAUSE_MAX, WATCH_PAUSE_MIN, WATCH_RESUME_MAX};
use crate::registry::keys::prefix_end;
use crate::registry::store::{Change, Changes, Revision, StoreError, StoreResult, Watch};

/// A watch of a prefix. Its task ends when it is dropped.
pub struct EtcdWatch {
    batches: mpsc::Receiver<StoreResult<Changes>>,
}

impl EtcdWatch {
    pub(super) fn start(link: Link, prefix: &str, from: Revision) -> Self {
        // While nobody takes them, no more are read, and etcd keeps them.
        let (batches, taken) = mpsc::channel(WATCH_BATCHES_MAX);
        let renewals = link.renewals();
        let prefix = prefix.to_owned();
        tokio::spawn(Follower { link, prefix, next: from, renewals, was_interrupted: false, batches }.run());
        Self { batches: taken }
    }
}

impl Watch for EtcdWatch {
    async fn next(&mut self) -> StoreResult<Changes> {
        let ended = || StoreError::Unavailable("the watch has ended".to_owned());
        self.batches.recv().await.ok_or_else(ended)?
    }
}

/// The task's state.
struct Follower {
    link: Link,
    prefix: String,
    /// The revision from which changes are still to come.
    next: Revision,
    /// Of the link when the watch was made: what it was to follow is gone when etcd went back since.
    renewals: u64,
    /// A stream of it ended, and whoever watches has yet to be told that another one was begun.
    was_interrupted: bool,
    batches: mpsc::Sender<StoreResult<Changes>>,
}

impl Follower {
    async fn run(mut self) {
        let batches = self.batches.clone();
        let follow = async {
            let mut pause = Pause::new(Instant::now());
            loop {
                let Err(error) = self.follow(&mut pause).await else { return };
                self.was_interrupted = true;
                let now = Instant::now();
                match pause.next(now) {
                    Some(length) if error.is_retryable() => {
                        tracing::debug!(prefix = self.prefix, %error, ?length, "a watch ended and is begun again");
                        tokio::time::sleep(length).await;
                    }
                    _ => {
                        // Whoever watched may have gone.
                        let _ = self.batches.send(Err(error)).await;
                        return;
                    }
                }
            }
        };
        tokio::select! {
            () = batches.closed() => {}
            () = follow => {}
        }
    }

    /// Hands on what one stream brings; returns when nobody takes it any more.
    async fn follow(&mut self, pause: &mut Pause) -> StoreResult<()> {
        let connected = self.link.connected().await?;
        if self.link.renewals() != self.renewals {
            return Err(StoreError::WentBack);
        }
        let mut stream = self.begin(&connected).await?;
        pause.reset(Instant::now());
        if std::mem::take(&mut self.was_interrupted)
            && self
                .batches
                .send(Ok(Changes { changes: Vec::new(), revision: self.next.saturating_sub(1) }))
                .await
                .is_err()
        {
            return Ok(());
        }
        loop {
            let message = stream.message().await.map_err(|error| error_of(&error));
            let message = message.and_then(|message| message.ok_or_else(|| ended("the stream of a watch ended")));
            // Also when the time was long: for the next failure, the stream was fine until now.
            pause.reset(Instant::now());
            let Some(changes) = changes_of(&self.link.judge(&connected, message.and_then(not_cancelled))?) else {
                continue;
            };
            self.next = changes.revision + 1;
            if self.batches.send(Ok(changes)).await.is_err() {
                return Ok(());
            }
        }
    }

    async fn begin(&self, connected: &Connected) -> StoreResult<WatchStream> {
        let options =
            WatchOptions::new().with_range(prefix_end(&self.prefix)).with_start_revision(self.next.cast_signed());
        let mut client = connected.watch_client();
        let begun = in_time(
            ETCD_REQUEST_MAX,
            Box::pin(async {
                let mut stream = client.watch(self.prefix.as_str(), Some(options)).await?;
                let first = stream.message().await?;
                Ok((stream, first))
            }),
        );
        let begun = begun.await.and_then(|(stream, first)| match first {
            Some(first) => Ok((stream, not_cancelled(first)?)),
            None => Err(ended("the stream of a watch ended at once")),
        });
        let (stream, first) = self.link.judge(connected, begun)?;
        // From a revision that is yet to come, etcd would wait for it without a word, and changes on the way to it would
        // be missed, if it had come that far before.
        if revision_of(first.header()) + 1 < self.next {
            self.link.confirm(connected, self.next - 1).await?;
        }
        Ok(stream)
    }
}

fn ended(reason: &str) -> StoreError {
    StoreError::Unavailable(reason.to_owned())
}

fn not_cancelled(message: WatchResponse) -> StoreResult<WatchResponse> {
    if message.canceled() {
        Err(error_of_cancel(message.compact_revision(), message.cancel_reason()))
    } else {
        Ok(message)
    }
}

/// A message's changes. Its revision is that of the last one: the header's may already be that of changes to come.
fn changes_of(message: &WatchResponse) -> Option<Changes> {
    let changes: Vec<Change> = message
        .events()
        .iter()
        .filter_map(|event| Some((event.event_type(), entry_of(event.kv()?.clone()))))
        .map(|(kind, entry)| match kind {
            EventType::Put => Change::Put(entry),
            EventType::Delete => Change::Deleted { key: entry.key, revision: entry.mod_revision },
        })
        .collect();
    let revision = match changes.last()? {
        Change::Put(entry) => entry.mod_revision,
        Change::Deleted { revision, .. } => *revision,
    };
    Some(Changes { changes, revision })
}

/// Pauses that double, each cut by a random part up to its half, so that brokers that lost the same etcd at once do not
/// come back at once.
struct Pause {
    failing_since: Instant,
    longest: Duration,
}

impl Pause {
    fn new(now: Instant) -> Self {
        Self { failing_since: now, longest: WATCH_PAUSE_MIN }
    }

    fn reset(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// The next pause; `None` when it has failed for so long that the caller must know.
    fn next(&mut self, now: Instant) -> Option<Duration> {
        if now.saturating_duration_since(self.failing_since) > WATCH_RESUME_MAX {
            return None;
        }
        let pause = self.longest.mul_f64(1.0 - fastrand::f64() / 2.0);
        self.longest = (self.longest * 2).min(WATCH_PAUSE_MAX);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_end() {
        let start = Instant::now();
        let mut pause = Pause::new(start);
        let mut longest = WATCH_PAUSE_MIN;
        for _ in 0..20 {
            let next = pause.next(start).expect("not for long yet");
            assert!(next <= longest && next >= longest / 2, "{next:?} {longest:?}");
            longest = (longest * 2).min(WATCH_PAUSE_MAX);
        }
        assert_eq!(longest, WATCH_PAUSE_MAX);
        let later = start + WATCH_RESUME_MAX + Duration::from_millis(1);
        assert_eq!(pause.next(later), None);
        pause.reset(later);
        assert!(pause.next(later).is_some_and(|next| next <= WATCH_PAUSE_MIN));
    }
}

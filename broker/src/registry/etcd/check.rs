//! What an operator should know of the etcd that a cluster uses: its version, whether it is full, whether it forgets its
//! history by itself. Asked now and then; whoever asks logs and shows the answer.

use std::time::{Duration, Instant};

use etcd_client::{AlarmAction, AlarmType, GetOptions};

use super::EtcdStore;
use super::link::kv;
use crate::registry::store::{Revision, Store as _, StoreError, StoreResult};

/// The state of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdCheck {
    /// Of the member that answered.
    pub version: String,
    /// Its database file, in bytes.
    pub database_bytes: u64,
    /// Its space alarm is on: it takes no writes.
    pub is_full: bool,
    /// Sentences for the operator, each with what to do.
    pub warnings: Vec<String>,
}

/// When history that is still there means that nobody compacts it.
#[derive(Clone, Copy, Debug)]
pub struct CompactionRule {
    /// Revisions since the first one.
    pub revisions_at_first: u64,
    /// Or so long after a first look,
    pub within: Duration,
    /// if there were so many revisions since.
    pub revisions_since: u64,
}

impl Default for CompactionRule {
    fn default() -> Self {
        Self { revisions_at_first: 1_000_000, within: Duration::from_hours(1), revisions_since: 10_000 }
    }
}

/// What was last known of etcd's history.
#[derive(Debug, Default)]
pub(super) struct CompactionSeen {
    /// This revision was remembered at this time.
    remembered: Option<(Instant, Revision)>,
}

impl CompactionSeen {
    /// The revision that should be forgotten by now, if there is one.
    fn expected_to_be_gone(&mut self, rule: &CompactionRule, now: Instant, revision: Revision) -> Option<Revision> {
        let Some((since, remembered)) = self.remembered else {
            self.remembered = Some((now, revision));
            return (revision > rule.revisions_at_first).then_some(1);
        };
        let is_old = now.duration_since(since) >= rule.within;
        (is_old && revision.saturating_sub(remembered) >= rule.revisions_since).then_some(remembered)
    }

    /// It was gone: from now on this one is expected to go.
    fn was_gone(&mut self, now: Instant, revision: Revision) {
        self.remembered = Some((now, revision));
    }
}

impl EtcdStore {
    /// Asks etcd how it is.
    pub async fn check(&self, rule: &CompactionRule) -> StoreResult<EtcdCheck> {
        let status = self.link.read(async |client| client.maintenance_client().status().await).await?;
        let alarms = self
            .link
            .read(async |client| client.maintenance_client().alarm(AlarmAction::Get, AlarmType::Nospace, None).await)
            .await?;
        let is_full = alarms.alarms().iter().any(|alarm| alarm.alarm() == AlarmType::Nospace);
        let database_bytes = status.db_size().max(0).cast_unsigned();
        let version = status.version().to_owned();
        let mut warnings = Vec::new();
        warnings.extend(version_warning(&version));
        if is_full {
            warnings.push(format!(
                "etcd takes no writes, its database of {database_bytes} bytes having reached its quota: compact it, \
                 defragment it, then disarm its NOSPACE alarm (etcdctl compaction, defrag, alarm disarm)"
            ));
        }
        warnings.extend(self.compaction_warning(rule).await?);
        Ok(EtcdCheck { version, database_bytes, is_full, warnings })
    }

    async fn compaction_warning(&self, rule: &CompactionRule) -> StoreResult<Option<String>> {
        let (revision, now) = (self.seen().await?.revision, Instant::now());
        let compaction = || self.compaction.lock().expect("nobody panics while it is held");
        let Some(old) = compaction().expected_to_be_gone(rule, now, revision) else { return Ok(None) };
        let (prefix, options) = (self.link.prefix(), GetOptions::new().with_revision(old.cast_signed()));
        match self.link.read(async |client| kv(&client).get(prefix, Some(options.clone())).await).await {
            Err(StoreError::Compacted { .. }) => {
                compaction().was_gone(now, revision);
                Ok(None)
            }
            answer => answer.map(|_| {
                Some(format!(
                    "etcd still remembers revision {old} of {revision}: without automatic compaction its database fills \
                     up; start it with --auto-compaction-mode=periodic --auto-compaction-retention=5m"
                ))
            }),
        }
    }
}

/// Before these, a leader that was deposed without noticing still ended leases that its successor kept alive (etcd issue
/// 15247), and a watch could lose events around a compaction.
fn version_warning(version: &str) -> Option<String> {
    let mut numbers = version.split(['.', '-']).map(|part| part.parse::<u32>().ok());
    let (Some(Some(major)), Some(Some(minor)), Some(Some(patch))) = (numbers.next(), numbers.next(), numbers.next())
    else {
        return Some(format!("etcd's version {version} is not one that this broker knows how to read"));
    };
    let is_fixed = match (major, minor) {
        (3, 4) => patch >= 31,
        (3, 5) => patch >= 13,
        version => version >= (3, 6),
    };
    (!is_fixed).then(|| {
        format!(
            "etcd {version} can end leases that are kept alive when its leader hangs: brokers and group members may count \
             as gone though they live; use 3.4.31, 3.5.13, 3.6 or later"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_before_the_lease_fix_are_warned_of() {
        for (version, is_warned) in [
            ("3.3.27", true),
            ("3.4.23", true),
            ("3.4.30", true),
            ("3.4.31", false),
            ("3.4.40-rc.1", false),
            ("3.5.0", true),
            ("3.5.12", true),
            ("3.5.13", false),
            ("3.6.0", false),
            ("4.0.0", false),
            ("master", true),
        ] {
            assert_eq!(version_warning(version).is_some(), is_warned, "{version}");
        }
    }

    #[test]
    fn history_is_expected_to_go_after_a_while_with_enough_changes() {
        let rule = CompactionRule { revisions_at_first: 1_000, within: Duration::from_mins(10), revisions_since: 100 };
        let (start, later) = (Instant::now(), Instant::now() + Duration::from_mins(11));
        assert_eq!(CompactionSeen::default().expected_to_be_gone(&rule, start, 1_001), Some(1));
        let mut seen = CompactionSeen::default();
        assert_eq!(seen.expected_to_be_gone(&rule, start, 500), None, "a young store");
        assert_eq!(seen.expected_to_be_gone(&rule, start, 5_000), None, "not after so short a time");
        assert_eq!(seen.expected_to_be_gone(&rule, later, 550), None, "not after so few changes");
        assert_eq!(seen.expected_to_be_gone(&rule, later, 600), Some(500));
        seen.was_gone(later, 600);
        assert_eq!(seen.expected_to_be_gone(&rule, later, 5_000), None);
        assert_eq!(seen.expected_to_be_gone(&rule, later + rule.within, 5_000), Some(600));
    }
}

//! What a start takes of the machine before it serves: descriptors for connections, directories. And what the service
//! manager is told. Runs on the main thread.

use std::path::{Path, PathBuf};

use sd_notify::NotifyState;

use super::start::shard_count;
use crate::config::Config;
use crate::io::checks;
use crate::limits::CONNECTIONS_DESCRIPTORS_PART;

/// How many connections each shard may have, as far as there are descriptors for them.
pub(super) fn connections_max(config: &Config) -> u32 {
    let descriptors = match checks::raise_descriptor_limit() {
        Ok(descriptors) => descriptors,
        Err(warning) => {
            tracing::warn!("{warning}");
            checks::descriptor_limit()
        }
    };
    let shards = shard_count(config.shards) as u64;
    let possible = (descriptors / CONNECTIONS_DESCRIPTORS_PART / shards).max(1);
    if u64::from(config.connections_max) <= possible {
        return config.connections_max;
    }
    tracing::warn!(
        connections_max = config.connections_max,
        descriptors,
        "each shard takes {possible} connections only, half of the descriptors that this process may open being for \
         files; raise the limit (systemd: LimitNOFILE=1048576; a shell: ulimit -n 1048576), or lower connections_max"
    );
    possible as u32
}

/// Tells the service manager that started the broker, if one wants to be told (systemd: Type=notify).
pub(super) fn notify_manager(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager could not be told how the broker is; it may end it");
    }
}

/// The directories that a start makes, so that one that fails before anything lies in them leaves none behind.
pub(super) struct MadeDirs(Vec<PathBuf>);

impl MadeDirs {
    /// Those of the path to `dir` that are not there yet, the innermost first.
    pub(super) fn beyond(dir: &Path) -> Self {
        Self(dir.ancestors().take_while(|dir| !dir.exists()).map(Path::to_owned).collect())
    }

    /// They are to stay.
    pub(super) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for MadeDirs {
    fn drop(&mut self) {
        for dir in &self.0 {
            // One that holds anything stays.
            let _ = std::fs::remove_dir(dir);
        }
    }
}

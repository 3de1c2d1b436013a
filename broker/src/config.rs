//! The broker's settings: one table that makes the struct, the file, the flags, the environment variables, the help and
//! the sample file, so that they cannot drift apart. A flag goes before the environment, the environment before the
//! file, the file before the default. What is unknown, contradictory or out of range stops the start and is named.
//! Pure but for reading the file; runs before anything else does.

mod kinds;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

pub use kinds::{
    AutoCount, AutoHostPort, ByteSize, Endpoints, HostPort, Kind, LogFormat, OptionalEndpoints, OptionalFile,
    OptionalListener, OptionalName, Span,
};

use crate::limits;

/// Why the settings cannot be used; each names the setting and says where it came from.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration file {path} cannot be read: {source}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("the configuration file {path} is not valid TOML: {reason}", path = .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// No such setting.
    #[error("unknown setting {name} ({origin}); see corelane-broker --help for those that exist")]
    Unknown {
        /// As it was given.
        name: String,
        /// Where it stands.
        origin: Origin,
    },
    /// A value that the setting cannot take.
    #[error("{name}: {reason} ({origin})")]
    Value {
        /// The setting.
        name: &'static str,
        /// A sentence.
        reason: String,
        /// Where it stands.
        origin: Origin,
    },
    /// A file that a setting names cannot be read.
    #[error("{name}: {path} cannot be read: {source}", path = .path.display())]
    Unreadable {
        /// The setting.
        name: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A host or a directory that a setting names and that a start could not use.
    #[error("{name}: {reason}")]
    Unusable {
        /// The setting.
        name: &'static str,
        /// Why.
        reason: String,
    },
    /// Two settings that contradict each other.
    #[error("{name}: {reason}")]
    Contradiction {
        /// The setting that is to be changed.
        name: &'static str,
        /// Why, naming the other.
        reason: String,
    },
}

/// Where a setting's value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody gave it.
    Default,
    /// The configuration file.
    File(PathBuf),
    /// This environment variable.
    Environment(String),
    /// The command line.
    Flag,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("the default"),
            Self::File(path) => write!(f, "in {}", path.display()),
            Self::Environment(variable) => write!(f, "from the environment variable {variable}"),
            Self::Flag => f.write_str("from the command line"),
        }
    }
}

/// One row of the table: a setting's name, its text and how it is read and shown.
pub struct Setting {
    /// Its name in the file; the flag is the same with dashes, the variable in capitals behind `CORELANE_`.
    pub name: &'static str,
    /// What it is; then why one would change it.
    pub doc: &'static [&'static str],
    /// As it stands in the sample file.
    pub default: &'static str,
    /// In words.
    pub range: &'static str,
    quoted: bool,
    set: fn(&mut Config, &str) -> Result<(), String>,
    show: fn(&Config) -> String,
}

impl Setting {
    /// The flag, without its dashes in front.
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// The environment variable.
    pub fn variable(&self) -> String {
        format!("CORELANE_{}", self.name.to_uppercase())
    }

    fn toml_value(&self, shown: &str) -> String {
        if self.quoted { toml::Value::String(shown.to_owned()).to_string() } else { shown.to_owned() }
    }
}

macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ty = $default:literal, $range:literal $([$least:expr, $most:expr])?;)+) => {
        /// The broker's settings. Every field's text says unit and meaning, its range and the reason to change it.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($(#[doc = $doc])+ #[doc = concat!(" Default ", $default, "; ", $range, ".")] pub $name: $kind,)+
        }

        /// Every setting there is, in the order of the sample file.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            name: stringify!($name),
            doc: &[$($doc),+],
            default: $default,
            range: $range,
            quoted: <$kind as Kind>::QUOTED,
            set: |config, text| {
                let value = <$kind as Kind>::parse(text)?;
                $(within(&value, $least as u128, $most as u128, $range)?;)?
                config.$name = value;
                Ok(())
            },
            show: |config| config.$name.show(),
        },)+];

        impl Default for Config {
            fn default() -> Self {
                Self { $($name: <$kind as Kind>::parse($default).expect("a default reads as its kind"),)+ }
            }
        }
    };
}

fn within<K: Kind>(value: &K, least: u128, most: u128, range: &str) -> Result<(), String> {
    match value.magnitude() {
        Some(magnitude) if !(least..=most).contains(&magnitude) => {
            Err(format!("{} is out of range: it takes {range}", value.show()))
        }
        _ => Ok(()),
    }
}

const DAY_MS: u128 = 86_400_000;

settings! {
    /// The directory that holds everything: logs, identity, the embedded registry.
    /// Put it on a local file system with direct I/O (ext4, XFS); never share it between brokers.
    data: PathBuf = "/var/lib/corelane", "a directory, made if absent";
    /// Where clients connect. Port 0 lets the system choose; the ready line tells the port.
    /// Change it to be reached from other machines; there is no login yet, so keep it inside a trusted network.
    listen: HostPort = "127.0.0.1:9400", "HOST:PORT";
    /// The address that clients are told to connect to; auto tells the listener's own, or the machine's name when that is every address.
    /// Set it behind address translation, in containers, or when the machine has several names.
    advertise: AutoHostPort = "auto", "HOST:PORT or auto";
    /// Where the control page answers: / for people, /metrics, /health/live, /health/ready, /log/level.
    /// Change it for a remote monitoring system, or turn it off.
    http: OptionalListener = "127.0.0.1:9390", "HOST:PORT or off";
    /// How many shards: threads with partitions of their own, one a core.
    /// Fewer leave cores to others; more than there are cores makes everything slower. Changing it moves partitions between shards, no data.
    shards: AutoCount = "auto", "1 to 256, or auto: the cores this process may use" [1, limits::SHARDS_MAX];
    /// Whether each shard's thread stays on a core of its own.
    /// Turn it off where several brokers share the cores of one machine.
    pin_shards: bool = "true", "true or false";
    /// This broker's number in its cluster, lasting: it stands in the registry and in the data directory.
    /// Give each broker of a cluster its own.
    broker_id: u32 = "1", "0 to 4294967295";
    /// The cluster's name: the prefix of its keys in the registry.
    /// Change it when clusters share one registry.
    cluster: String = "main", "1 to 64 of A-Z a-z 0-9 . _ -";
    /// Where the cluster's registry is: the members of an etcd, each as a URL; one is used at a time. off keeps an embedded registry in the data directory, for a single broker.
    /// Set it, the same on each, to run several brokers as one cluster.
    etcd: OptionalEndpoints = "off", "URL[,URL...] such as http://10.0.0.1:2379, or off";
    /// How long this broker counts as running after its last sign of life in the registry.
    /// Longer bears a registry that is slow for longer; shorter lets others notice sooner that this broker is gone.
    broker_lease: Span = "10s", "2s to 5m" [2_000, 300_000];
    /// The certificates (PEM) of whoever signs those of etcd.
    /// Set it when etcd's URLs begin with https.
    etcd_ca: OptionalFile = "off", "a file, or off";
    /// This broker's certificate (PEM) for etcd.
    /// Set it, with `etcd_key`, when etcd asks its clients for one.
    etcd_cert: OptionalFile = "off", "a file, or off";
    /// The private key (PEM) of `etcd_cert`.
    /// Set it with `etcd_cert`.
    etcd_key: OptionalFile = "off", "a file, or off";
    /// The name that stands in etcd's certificates.
    /// Set it when it is not the one in the URLs.
    etcd_server_name: OptionalName = "off", "a name, or off";
    /// The user as whom this broker speaks to etcd.
    /// Set it, with `etcd_password_file`, when etcd has users; it needs to read and write under /corelane/ and the cluster's name.
    etcd_user: OptionalName = "off", "a name, or off";
    /// A file whose first line is that user's password; read again when etcd is connected to anew or refuses it.
    /// Set it with `etcd_user`; a password never stands in a setting, where others could see it.
    etcd_password_file: OptionalFile = "off", "a file, or off";
    /// Memory of each shard for what is being received, written and read back soon, in bytes; taken at start.
    /// More keeps a longer tail in memory for consumers that lag a little; less suits a small machine.
    arena_bytes: ByteSize = "64MiB", "32MiB to 64GiB" [limits::ARENA_BYTES_MIN, limits::ARENA_BYTES_LIMIT];
    /// How far a partition may write ahead of what is flushed, in bytes (the write window).
    /// More lets a slow disk gather larger flushes; a start after a crash writes as much again for each busy partition.
    unflushed_bytes_max: ByteSize = "16MiB", "8MiB + 4KiB to 256MiB" [limits::UNFLUSHED_BYTES_MIN, limits::UNFLUSHED_BYTES_LIMIT];
    /// Connections of one shard, so many times its shards of the broker; the next one is closed at once, with a log line now and then.
    /// Raise it for many clients; each idle one costs a few KiB, and a file descriptor: at most half of those that the process may open are for connections.
    connections_max: u32 = "10000", "1 to 1000000" [1, 1_000_000];
    /// Connections of one shard from one address; the next one is closed at once, with a log line now and then.
    /// Lower it so that one machine that goes wild cannot take all places; raise it where many clients come through one address.
    connections_per_address_max: u32 = "5000", "1 to 1000000" [1, 1_000_000];
    /// How long a connection may stay open on which nothing happens and nothing is under way.
    /// Shorter frees sooner what clients forgot to close; these connect again when they need to.
    idle_timeout: Span = "10m", "1s to 365d" [limits::IDLE_TIMEOUT_MIN.as_millis(), 365 * DAY_MS];
    /// How long a client's machine may answer nothing, neither what was sent to it nor a probe in the silence, before its connections end.
    /// Shorter frees sooner what machines that vanished held; longer suits networks that pause.
    peer_timeout: Span = "1m", "1s to 1h" [limits::PEER_TIMEOUT_MIN.as_millis(), limits::PEER_TIMEOUT_MAX.as_millis()];
    /// Partitions of this broker, all topics together; a creation that would pass it is refused.
    /// Each one costs a file descriptor or two and a few KiB.
    partitions_max: u32 = "20000", "1 to 1000000" [1, 1_000_000];
    /// A topic's segment size, in bytes, unless the topic says otherwise.
    /// Smaller segments let retention follow its limits more closely; larger ones mean fewer files.
    segment_bytes: ByteSize = "1GiB", "64KiB to 64GiB" [limits::SEGMENT_BYTES_MIN, limits::SEGMENT_BYTES_LIMIT];
    /// The age at which a segment is closed though it is not full, unless the topic says otherwise.
    /// Shorter lets retention by time follow its limit more closely in quiet topics.
    segment_time: Span = "7d", "1s to 3650d" [1_000, 3_650 * DAY_MS];
    /// How long messages are kept after their arrival, unless the topic says otherwise; 0 keeps them for ever.
    /// Set it to what the slowest consumer needs.
    retention: Span = "7d", "0, or up to 36500d" [0, 36_500 * DAY_MS];
    /// How many bytes of each partition are kept, unless the topic says otherwise; 0 sets no limit.
    /// Set it so that all partitions together fit the disk.
    retention_bytes: ByteSize = "0", "0, or up to 1PiB" [0, 1_u64 << 50];
    /// Flush after so many messages, unless the topic says otherwise; 0 does not count them.
    /// With 0 here and in `flush_interval` the broker flushes continuously, which suits nearly everyone.
    flush_messages: u64 = "0", "0 to 1000000000" [0, 1_000_000_000];
    /// Flush after so long, unless the topic says otherwise; 0 flushes continuously.
    /// A longer interval spares a slow disk and delays acknowledgements and consumers by as much.
    flush_interval: Span = "0", "0 to 1h" [0, 3_600_000];
    /// The largest message, in bytes with its framing, unless the topic says otherwise.
    /// Raise it for large values; producers and consumers must have the memory.
    message_bytes_max: ByteSize = "1MiB", "24 to 8MiB" [24, limits::MESSAGE_BYTES_LIMIT];
    /// The largest message set, in bytes, unless the topic says otherwise.
    /// Raise it for producers that gather a lot; it may not pass `segment_bytes`.
    set_bytes_max: ByteSize = "4MiB", "24 to 8MiB" [24, limits::SET_BYTES_LIMIT];
    /// How log lines look on stderr: human, json, or auto: for people on a terminal, JSON otherwise.
    /// Set it where the automatic choice is wrong, such as a terminal that is recorded.
    log_format: LogFormat = "auto", "auto, human or json";
    /// Which log lines are written: error, warn, info, debug, trace, or per module as in `info,corelane_broker::shard=debug`.
    /// Raise it to look for something; never leave trace on. While the broker runs: PUT /log/level on the control page.
    log_level: String = "info", "a filter";
    /// A shard that does not come back to its rings for so long, waiting for its core not counted, says so in a log line; 0 does not watch.
    /// Set it, to 10ms for example, to see whether something keeps a shard from its work; watching wakes each one hundreds of times a second.
    stall_warning: Span = "0", "0, or up to 1m" [0, 60_000];
}

impl Config {
    /// The settings from a file, the environment and flags: `flags` are (name, value) as the command line gave them.
    /// `environment` may hold anything; only `CORELANE_...` counts.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        if let Some(path) = file {
            let text =
                std::fs::read_to_string(path).map_err(|source| ConfigError::File { path: path.to_owned(), source })?;
            config.apply_file(path, &text)?;
        }
        for (variable, value) in environment {
            config.apply_variable(&variable, &value)?;
        }
        for (name, value) in flags {
            config.apply(name, &value, Origin::Flag)?;
        }
        config.check()?;
        Ok(config)
    }

    fn apply(&mut self, name: &str, text: &str, origin: Origin) -> Result<(), ConfigError> {
        let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) else {
            return Err(ConfigError::Unknown { name: name.to_owned(), origin });
        };
        (setting.set)(self, text).map_err(|reason| ConfigError::Value { name: setting.name, reason, origin })
    }

    fn apply_file(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| ConfigError::Syntax {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        for (name, value) in table {
            let text = match value {
                toml::Value::String(text) => text,
                toml::Value::Table(_) | toml::Value::Array(_) => {
                    return Err(ConfigError::Unknown { name, origin: Origin::File(path.to_owned()) });
                }
                plain => plain.to_string(),
            };
            self.apply(&name, &text, Origin::File(path.to_owned()))?;
        }
        Ok(())
    }

    fn apply_variable(&mut self, variable: &str, value: &str) -> Result<(), ConfigError> {
        let Some(name) = variable.strip_prefix("CORELANE_") else { return Ok(()) };
        if is_of_others(name) {
            return Ok(());
        }
        let origin = Origin::Environment(variable.to_owned());
        match SETTINGS.iter().find(|setting| setting.name.to_uppercase() == name) {
            Some(setting) => self.apply(setting.name, value, origin),
            None => Err(ConfigError::Unknown { name: variable.to_owned(), origin }),
        }
    }

    /// Refuses what contradicts itself.
    fn check(&self) -> Result<(), ConfigError> {
        let contradiction = |name, reason| Err(ConfigError::Contradiction { name, reason });
        if self.set_bytes_max > self.segment_bytes {
            let (set, segment) = (self.set_bytes_max.show(), self.segment_bytes.show());
            return contradiction(
                "set_bytes_max",
                format!("{set} is more than segment_bytes ({segment}): a set lies in one segment; lower it"),
            );
        }
        if self.message_bytes_max > self.set_bytes_max {
            let (message, set) = (self.message_bytes_max.show(), self.set_bytes_max.show());
            return contradiction(
                "message_bytes_max",
                format!("{message} is more than set_bytes_max ({set}): a message travels in a set; lower it"),
            );
        }
        self.check_etcd()?;
        if self.http.0.as_ref().is_some_and(|http| http.port != 0 && *http == self.listen) {
            return contradiction("http", format!("{} is also what listen says; they need a port each", self.listen));
        }
        if self.cluster.is_empty() || self.cluster.len() > 64 || !self.cluster.bytes().all(is_name_byte) {
            return contradiction("cluster", format!("{:?} is not 1 to 64 of A-Z a-z 0-9 . _ -", self.cluster));
        }
        if let AutoHostPort(Some(advertise)) = &self.advertise
            && (advertise.port == 0 || advertise.host == "0.0.0.0" || advertise.host == "::")
        {
            return contradiction("advertise", format!("no client can connect to {advertise}; name a host and a port"));
        }
        Ok(())
    }

    fn check_etcd(&self) -> Result<(), ConfigError> {
        let contradiction = |name, reason: &str| Err(ConfigError::Contradiction { name, reason: reason.to_owned() });
        if self.etcd_cert.0.is_some() != self.etcd_key.0.is_some() {
            return contradiction("etcd_cert", "it goes with etcd_key; give both or neither");
        }
        if self.etcd_user.0.is_some() != self.etcd_password_file.0.is_some() {
            return contradiction("etcd_user", "it goes with etcd_password_file; give both or neither");
        }
        let uses_tls = |url: &String| url.starts_with("https://");
        match (&self.etcd.0, &self.etcd_ca.0) {
            (Some(endpoints), None) if endpoints.0.iter().any(uses_tls) => {
                contradiction("etcd_ca", "etcd's URLs begin with https, so it must name the certificates of their CA")
            }
            (Some(endpoints), Some(_)) if !endpoints.0.iter().all(uses_tls) => {
                contradiction("etcd_ca", "it is for TLS, but not all of etcd's URLs begin with https")
            }
            (None, None) if self.etcd_cert.0.is_some() || self.etcd_server_name.0.is_some() => {
                contradiction("etcd_ca", "etcd_cert and etcd_server_name are of use with it only")
            }
            (None, Some(_)) => {
                contradiction("etcd", "it must name etcd's members, or the other etcd_ settings are moot")
            }
            (None, None) if self.etcd_user.0.is_some() => {
                contradiction("etcd", "it must name etcd's members, or the other etcd_ settings are moot")
            }
            _ => Ok(()),
        }
    }

    /// Whether what settings name on this machine could be used: files, hosts, the place of the data directory. Looked at for
    /// `check`, as its user; a start opens, looks up and makes them itself.
    pub fn check_surroundings(&self) -> Result<(), ConfigError> {
        let unusable = |name| move |reason| ConfigError::Unusable { name, reason };
        self.listen.resolve().map_err(unusable("listen"))?;
        if let Some(http) = &self.http.0 {
            http.resolve().map_err(unusable("http"))?;
        }
        check_data_dir(&self.data).map_err(unusable("data"))?;
        let files = [
            ("etcd_ca", &self.etcd_ca),
            ("etcd_cert", &self.etcd_cert),
            ("etcd_key", &self.etcd_key),
            ("etcd_password_file", &self.etcd_password_file),
        ];
        for (name, file) in files {
            if let Some(path) = &file.0 {
                std::fs::read(path).map_err(|source| ConfigError::Unreadable { name, path: path.clone(), source })?;
            }
        }
        Ok(())
    }

    /// What of it is not as by default, as a file that loads as the whole again.
    pub fn to_toml_changed(&self) -> String {
        let default = Self::default();
        let changed = SETTINGS.iter().filter(|setting| (setting.show)(self) != (setting.show)(&default));
        changed.fold(String::new(), |mut text, setting| {
            let _ = writeln!(text, "{} = {}", setting.name, setting.toml_value(&(setting.show)(self)));
            text
        })
    }

    /// The whole of it as a file that loads again, without the explanations.
    pub fn to_toml(&self) -> String {
        SETTINGS.iter().fold(String::new(), |mut text, setting| {
            let _ = writeln!(text, "{} = {}", setting.name, setting.toml_value(&(setting.show)(self)));
            text
        })
    }
}

/// Whether a directory is there, or could be made, and be written to.
fn check_data_dir(path: &Path) -> Result<(), String> {
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    let there = path.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("/"));
    if !there.is_dir() {
        return Err(format!("{} is not a directory", there.display()));
    }
    rustix::fs::access(there, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
        .map_err(|error| format!("{} cannot be written to: {error}", there.display()))
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// Variables with our prefix that are not settings: the command line tool's, and those that Kubernetes sets in every
/// container for a service named corelane.
fn is_of_others(name: &str) -> bool {
    name == "BROKER" || name == "CONFIG" || name == "PORT" || name.starts_with("PORT_") || name.starts_with("SERVICE_")
}

/// The sample file: every setting with its explanation and its default, commented out.
pub fn sample_file() -> String {
    let mut text = String::from(
        "# Corelane broker: every setting with its default. Remove the # in front of a line to change it.\n\
         # A flag goes before the environment (CORELANE_ and the name in capitals), that before this file.\n\
         # Sizes are written as 64KiB, 512MiB, 1GiB; lengths of time as 10ms, 30s, 5m, 12h, 7d.\n",
    );
    for setting in SETTINGS {
        text.push('\n');
        for line in setting.doc {
            let _ = writeln!(text, "#{}", line.replace('`', ""));
        }
        let _ = writeln!(text, "# Takes {}.", setting.range);
        let _ = writeln!(text, "#{} = {}", setting.name, setting.toml_value(setting.default));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file: Option<&str>, env: &[(&str, &str)], flags: &[(&'static str, &str)]) -> Result<Config, ConfigError> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = file.map(|text| {
            let path = dir.path().join("corelane.toml");
            std::fs::write(&path, text).expect("written");
            path
        });
        Config::load(
            path.as_deref(),
            env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
            flags.iter().map(|(name, value)| (*name, (*value).to_owned())),
        )
    }

    fn refusal(file: Option<&str>, env: &[(&str, &str)], flags: &[(&'static str, &str)]) -> String {
        load(file, env, flags).expect_err("refused").to_string()
    }

    #[test]
    fn a_flag_goes_before_the_environment_and_that_before_the_file_and_that_before_the_default() {
        let file = Some("segment_bytes = \"2MiB\"\nset_bytes_max = \"1MiB\"\nbroker_id = 7\nretention = \"1d\"\n");
        let env = &[("CORELANE_SEGMENT_BYTES", "3MiB"), ("CORELANE_BROKER_ID", "8"), ("HOME", "/")];
        let config = load(file, env, &[("segment_bytes", "4MiB")]).expect("loads");
        assert_eq!(config.segment_bytes, ByteSize(4 << 20));
        assert_eq!(config.broker_id, 8);
        assert_eq!(config.retention.show(), "1d");
        assert_eq!(config.arena_bytes, Config::default().arena_bytes);
    }

    #[test]
    fn what_is_wrong_is_named_with_the_place_it_stands_in() {
        for (file, env, flags, expected) in [
            (Some("segment_byte = 1"), &[][..], &[][..], "unknown setting segment_byte (in "),
            (
                Some("segment_bytes = \"1KiB\""),
                &[],
                &[],
                "segment_bytes: 1KiB is out of range: it takes 64KiB to 64GiB (in ",
            ),
            (Some("[section]\n"), &[], &[], "unknown setting section"),
            (Some("data = "), &[], &[], "is not valid TOML"),
            (None, &[("CORELANE_SEGMNT_BYTES", "1")], &[], "unknown setting CORELANE_SEGMNT_BYTES"),
            (None, &[("CORELANE_SHARDS", "0")], &[], "shards: 0 is out of range"),
            (None, &[], &[("retention", "7")], "retention: \"7\" is not a length of time"),
            (
                None,
                &[],
                &[("set_bytes_max", "8MiB"), ("segment_bytes", "4MiB")],
                "set_bytes_max: 8MiB is more than segment_bytes",
            ),
            (None, &[], &[("message_bytes_max", "8MiB")], "message_bytes_max: 8MiB is more than set_bytes_max"),
            (None, &[], &[("http", "127.0.0.1:9400")], "http: 127.0.0.1:9400 is also what listen says"),
            (None, &[], &[("cluster", "a/b")], "cluster: \"a/b\" is not"),
            (None, &[], &[("etcd", "127.0.0.1:2379")], "etcd: \"127.0.0.1:2379\" is not a URL"),
            (None, &[], &[("etcd", "https://a:1")], "etcd_ca: etcd's URLs begin with https"),
            (None, &[], &[("etcd", "http://a:1"), ("etcd_ca", "/ca")], "etcd_ca: it is for TLS, but not all"),
            (None, &[], &[("etcd", "http://a:1"), ("etcd_user", "u")], "etcd_user: it goes with etcd_password_file"),
            (None, &[], &[("etcd_ca", "/ca")], "etcd: it must name etcd's members"),
            (None, &[], &[("advertise", "0.0.0.0:1")], "advertise: no client can connect to 0.0.0.0:1"),
        ] {
            let message = refusal(file, env, flags);
            assert!(message.contains(expected), "{message:?} should contain {expected:?}");
        }
    }

    #[test]
    fn variables_that_others_set_are_left_alone() {
        let env =
            &[("CORELANE_BROKER", "x:1"), ("CORELANE_SERVICE_HOST", "1.2.3.4"), ("CORELANE_PORT_9400_TCP", "tcp://")];
        assert_eq!(load(None, env, &[]).expect("loads"), Config::default());
    }

    #[test]
    fn what_is_printed_loads_again_as_the_same() {
        let flags = [("data", "/tmp/a \"b\" \\ c"), ("http", "off"), ("shards", "3"), ("retention", "36h")];
        let config = load(None, &[], &flags).expect("loads");
        assert_eq!(load(Some(&config.to_toml()), &[], &[]).expect("loads"), config);
        assert_eq!(load(Some(&config.to_toml_changed()), &[], &[]).expect("loads"), config);
        assert_eq!(config.to_toml_changed().lines().count(), flags.len());
    }

    #[test]
    fn the_sample_file_is_the_one_in_deploy_and_loads_as_the_defaults() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/corelane.toml");
        let sample = sample_file();
        if std::env::var_os("CORELANE_WRITE_SAMPLES").is_some() {
            std::fs::write(path, &sample).expect("written");
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(stored, sample, "run this test with CORELANE_WRITE_SAMPLES=1 to write deploy/corelane.toml");
        assert_eq!(load(Some(&sample), &[], &[]).expect("loads"), Config::default());
        let active: String = sample
            .lines()
            .map(|line| {
                line.strip_prefix('#').filter(|rest| rest.contains(" = ") && !rest.starts_with(' ')).unwrap_or("")
            })
            .fold(String::new(), |all, line| all + line + "\n");
        assert_eq!(active.matches(" = ").count(), SETTINGS.len());
        assert_eq!(load(Some(&active), &[], &[]).expect("loads"), Config::default());
    }

    #[test]
    fn every_default_lies_in_its_range() {
        for setting in SETTINGS {
            let mut config = Config::default();
            (setting.set)(&mut config, setting.default).unwrap_or_else(|error| panic!("{}: {error}", setting.name));
            assert_eq!((setting.show)(&config), setting.default, "{}", setting.name);
            assert!(setting.doc.len() >= 2, "{} says what it is and why one would change it", setting.name);
        }
        assert!(Config::default().check().is_ok());
    }
}

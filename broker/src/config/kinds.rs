//! The kinds of value that a setting may have: how each is read from text, how it is written back, and how it compares
//! with the ends of its range. Pure.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// A kind of setting. `show` and `parse` are inverse to each other.
pub trait Kind: Sized {
    /// Whether TOML writes it in quotes.
    const QUOTED: bool;
    /// Reads it; the error is a sentence without the setting's name.
    fn parse(text: &str) -> Result<Self, String>;
    /// Writes it.
    fn show(&self) -> String;
    /// Its size where it has one, to be held against a range.
    fn magnitude(&self) -> Option<u128> {
        None
    }
}

/// A number of bytes, written as `64MiB`, `1GB` or plain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

const BYTE_UNITS: [(&str, u64); 10] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("KB", 1_000),
    ("B", 1),
];

impl Kind for ByteSize {
    const QUOTED: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a size; write 4096, 64KiB, 512MiB or 1GiB");
        let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
        let factor = match unit {
            "" => 1,
            unit => BYTE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(wrong)?.1,
        };
        number.checked_mul(factor).map(ByteSize).ok_or_else(|| format!("{text:?} is too large"))
    }

    fn show(&self) -> String {
        let unit = BYTE_UNITS.iter().take(4).find(|(_, factor)| self.0 != 0 && self.0.is_multiple_of(*factor));
        unit.map_or_else(|| self.0.to_string(), |(name, factor)| format!("{}{name}", self.0 / factor))
    }

    fn magnitude(&self) -> Option<u128> {
        Some(u128::from(self.0))
    }
}

/// A length of time, written as `7d`, `36h`, `10ms`; a bare number other than 0 would leave its unit open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    /// In milliseconds.
    pub fn as_ms(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

const SPAN_UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl Kind for Span {
    const QUOTED: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a length of time; write 10ms, 30s, 5m, 12h or 7d");
        let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
        if unit.is_empty() && number == 0 {
            return Ok(Self::default());
        }
        let factor = SPAN_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1;
        let ms = number.checked_mul(factor).ok_or_else(|| format!("{text:?} is too long"))?;
        Ok(Self(Duration::from_millis(ms)))
    }

    fn show(&self) -> String {
        let ms = self.as_ms();
        let unit = SPAN_UNITS.iter().find(|(_, factor)| ms != 0 && ms.is_multiple_of(*factor));
        unit.map_or_else(|| "0".to_owned(), |(name, factor)| format!("{}{name}", ms / factor))
    }

    fn magnitude(&self) -> Option<u128> {
        Some(self.0.as_millis())
    }
}

fn number_and_unit(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    Some((number.replace('_', "").parse().ok()?, unit.trim_start()))
}

impl Kind for u32 {
    const QUOTED: bool = false;

    fn parse(text: &str) -> Result<Self, String> {
        text.trim().replace('_', "").parse().map_err(|_| format!("{text:?} is not a whole number that fits 32 bits"))
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn magnitude(&self) -> Option<u128> {
        Some(u128::from(*self))
    }
}

impl Kind for u64 {
    const QUOTED: bool = false;

    fn parse(text: &str) -> Result<Self, String> {
        text.trim().replace('_', "").parse().map_err(|_| format!("{text:?} is not a whole number"))
    }

    fn show(&self) -> String {
        self.to_string()
    }

    fn magnitude(&self) -> Option<u128> {
        Some(u128::from(*self))
    }
}

impl Kind for bool {
    const QUOTED: bool = false;

    fn parse(text: &str) -> Result<Self, String> {
        match text.trim() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(format!("{text:?} is neither true nor false")),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Kind for String {
    const QUOTED: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }

    fn show(&self) -> String {
        self.clone()
    }
}

impl Kind for PathBuf {
    const QUOTED: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("a path must not be empty".to_owned()) } else { Ok(Self::from(text)) }
    }

    fn show(&self) -> String {
        self.display().to_string()
    }
}

/// A number, or `auto` for the one that fits the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AutoCount {
    /// Found out at start.
    #[default]
    Auto,
    /// As given.
    Fixed(u32),
}

impl Kind for AutoCount {
    const QUOTED: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            number => number.parse().map(Self::Fixed).map_err(|_| format!("{text:?} is neither auto nor a number")),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Fixed(number) => number.to_string(),
        }
    }

    fn magnitude(&self) -> Option<u128> {
        match self {
            Self::Auto => None,
            Self::Fixed(number) => Some(u128::from(*number)),
        }
    }
}

/// A host and a port: `127.0.0.1:9400`, `[::1]:9400`, `broker-1:9400`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// A name or an address, without brackets.
    pub host: String,
    /// 0 in a listener lets the system choose.
    pub port: u16,
}

impl HostPort {
    /// The address, the host's name being looked up (which may take as long as DNS does: only at start).
    pub fn resolve(&self) -> Result<SocketAddr, String> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(SocketAddr::new(ip, self.port));
        }
        let mut found = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .map_err(|error| format!("the host {:?} has no address: {error}", self.host))?;
        found.next().ok_or_else(|| format!("the host {:?} has no address", self.host))
    }
}

impl From<SocketAddr> for HostPort {
    fn from(addr: SocketAddr) -> Self {
        Self { host: addr.ip().to_string(), port: addr.port() }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl Kind for HostPort {
    const QUOTED: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not HOST:PORT, such as 127.0.0.1:9400, [::1]:9400 or broker-1:9400");
        let (host, port) = text.trim().rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        let host = match host.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
            Some(inside) => inside.ok_or_else(wrong)?,
            None if host.contains(':') => return Err(wrong()),
            None => host,
        };
        if host.is_empty() { Err(wrong()) } else { Ok(Self { host: host.to_owned(), port }) }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// A value, or a word for none.
macro_rules! optional_kind {
    ($(#[doc = $doc:literal])* $name:ident, $inner:ty, $word:literal) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name(pub Option<$inner>);

        impl Kind for $name {
            const QUOTED: bool = true;

            fn parse(text: &str) -> Result<Self, String> {
                if text.trim() == $word { Ok(Self(None)) } else { <$inner>::parse(text).map(|value| Self(Some(value))) }
            }

            fn show(&self) -> String {
                self.0.as_ref().map_or_else(|| $word.to_owned(), Kind::show)
            }
        }
    };
}

optional_kind! {
    /// A listener, or `off`.
    OptionalListener, HostPort, "off"
}
optional_kind! {
    /// An address told to clients, or `auto`: the listener's own.
    AutoHostPort, HostPort, "auto"
}

/// URLs of a registry's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints(pub Vec<String>);

impl Kind for Endpoints {
    const QUOTED: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        let endpoints: Vec<String> = text.split(',').map(|url| url.trim().trim_end_matches('/').to_owned()).collect();
        for url in &endpoints {
            let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
            let rest = rest.ok_or_else(|| format!("{url:?} is not a URL that begins with http:// or https://"))?;
            HostPort::parse(rest)?;
        }
        Ok(Self(endpoints))
    }

    fn show(&self) -> String {
        self.0.join(",")
    }
}

optional_kind! {
    /// etcd's members, or `off`: the embedded registry.
    OptionalEndpoints, Endpoints, "off"
}
optional_kind! {
    /// A file, or `off`.
    OptionalFile, PathBuf, "off"
}
optional_kind! {
    /// A name, or `off`.
    OptionalName, String, "off"
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

impl Kind for LogFormat {
    const QUOTED: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            "human" => Ok(Self::Human),
            "json" => Ok(Self::Json),
            _ => Err(format!("{text:?} is none of auto, human, json")),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Auto => "auto",
            Self::Human => "human",
            Self::Json => "json",
        }
        .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both_ways<K: Kind + PartialEq + fmt::Debug>(text: &str, value: &K, shown: &str) {
        assert_eq!(K::parse(text).as_ref(), Ok(value), "{text}");
        assert_eq!(value.show(), shown);
        assert_eq!(K::parse(shown).as_ref(), Ok(value), "what is shown reads back");
    }

    #[test]
    fn sizes_are_read_in_human_units_and_shown_in_the_largest_that_fits() {
        both_ways("1GiB", &ByteSize(1 << 30), "1GiB");
        both_ways("1 gib", &ByteSize(1 << 30), "1GiB");
        both_ways("1536KiB", &ByteSize(1536 << 10), "1536KiB");
        both_ways("1MB", &ByteSize(1_000_000), "1000000");
        both_ways("4_096", &ByteSize(4096), "4KiB");
        both_ways("0", &ByteSize(0), "0");
        for wrong in ["", "x", "1XB", "-1", "99999999999TiB", "1.5GiB"] {
            assert!(ByteSize::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn spans_need_a_unit_unless_they_are_zero() {
        both_ways("7d", &Span(Duration::from_hours(168)), "7d");
        both_ways("90m", &Span(Duration::from_mins(90)), "90m");
        both_ways("60s", &Span(Duration::from_mins(1)), "1m");
        both_ways("0", &Span(Duration::ZERO), "0");
        for wrong in ["7", "d", "7 weeks", ""] {
            assert!(Span::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn hosts_and_ports_are_read_with_and_without_brackets() {
        both_ways("127.0.0.1:9400", &HostPort { host: "127.0.0.1".to_owned(), port: 9400 }, "127.0.0.1:9400");
        both_ways("[::1]:0", &HostPort { host: "::1".to_owned(), port: 0 }, "[::1]:0");
        both_ways("b-1.example:1", &HostPort { host: "b-1.example".to_owned(), port: 1 }, "b-1.example:1");
        for wrong in ["", "9400", ":9400", "::1:9400", "h:", "h:99999", "[::1:9400"] {
            assert!(HostPort::parse(wrong).is_err(), "{wrong}");
        }
        both_ways("off", &OptionalListener(None), "off");
        let two = OptionalEndpoints(Some(Endpoints(vec!["http://a:2379".to_owned(), "http://[::1]:2379".to_owned()])));
        both_ways("http://a:2379/, http://[::1]:2379", &two, "http://a:2379,http://[::1]:2379");
        for wrong in ["", "a:2379", "http://a", "http://a:2379,", "ftp://a:1"] {
            assert!(OptionalEndpoints::parse(wrong).is_err(), "{wrong}");
        }
        both_ways("auto", &AutoCount::Auto, "auto");
        both_ways("3", &AutoCount::Fixed(3), "3");
        both_ways("json", &LogFormat::Json, "json");
        both_ways("true", &true, "true");
    }
}

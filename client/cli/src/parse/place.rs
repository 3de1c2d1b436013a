//! Where to begin and where to stop: `earliest`, `latest`, a position, a moment, a time ago.
//!
//! A moment without a zone is local time, as in `date` and `journalctl`; what is sent to a broker is always
//! milliseconds since the Unix epoch.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::duration::parse_duration_ms;

/// `--from`, of the commands that read a topic.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct FromArg {
    /// Where to begin: earliest, latest, a position (of each partition), a time, or a time ago
    #[arg(
        long,
        value_name = "earliest|latest|POSITION|TIME|-1h",
        default_value = "earliest",
        allow_hyphen_values = true,
        value_parser = parse_place
    )]
    pub(crate) from: Place,
}

/// A place in a partition's log, as an argument names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Earliest,
    Latest,
    Position(u64),
    Time(Moment),
}

/// A moment, absolute or as long ago as that when the command starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    UnixMs(i64),
    AgoMs(i64),
}

impl Moment {
    /// The moment in milliseconds since the Unix epoch, if it is `now_ms` now.
    pub(crate) fn unix_ms(self, now_ms: i64) -> i64 {
        match self {
            Moment::UnixMs(ms) => ms,
            Moment::AgoMs(ms) => now_ms.saturating_sub(ms),
        }
    }
}

/// Reads what `--from` takes.
pub(crate) fn parse_place(text: &str) -> Result<Place, String> {
    match text {
        "earliest" => return Ok(Place::Earliest),
        "latest" => return Ok(Place::Latest),
        _ => {}
    }
    if let Ok(position) = text.parse::<u64>() {
        return Ok(Place::Position(position));
    }
    parse_moment(text).map(Place::Time).map_err(|_| {
        format!(
            "`{text}` is no place in a log; write earliest, latest, a position (4096), a time \
             (2026-07-01T12:00:00Z, '2026-07-01 12:00', @1782900000) or a time ago (-1h)"
        )
    })
}

/// Reads a moment: `-1h30m`, `@1782900000` (seconds, or milliseconds from 12 digits on), RFC 3339, or local time.
pub(crate) fn parse_moment(text: &str) -> Result<Moment, String> {
    let refusal = || {
        format!(
            "`{text}` is not a time; write 2026-07-01T12:00:00Z, '2026-07-01 12:00' (local), @1782900000 (Unix) or -1h (ago)"
        )
    };
    if text == "now" {
        return Ok(Moment::AgoMs(0));
    }
    if let Some(ago) = text.strip_prefix('-') {
        let ago_ms = parse_duration_ms(ago)?;
        return i64::try_from(ago_ms).map(Moment::AgoMs).map_err(|_| refusal());
    }
    if let Some(unix) = text.strip_prefix('@') {
        return parse_unix(unix).map(Moment::UnixMs).ok_or_else(refusal);
    }
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Ok(Moment::UnixMs(timestamp.as_millisecond()));
    }
    let local = text.parse::<DateTime>().map_err(|_| refusal())?;
    let zoned = local.to_zoned_datetime(TimeZone::system()).map_err(|_| refusal())?;
    Ok(Moment::UnixMs(zoned.timestamp().as_millisecond()))
}

/// Seconds with an optional fraction, or whole milliseconds: 12 digits as seconds would be the year 5138 and later.
fn parse_unix(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = whole.parse::<i64>().ok()?;
    if whole.len() >= 12 {
        return fraction.is_empty().then_some(number);
    }
    let milliseconds = format!("{fraction:0<3}").get(..3)?.parse::<i64>().ok()?;
    Some(number * 1_000 + milliseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_in_every_form() {
        for (text, place) in [
            ("earliest", Place::Earliest),
            ("latest", Place::Latest),
            ("0", Place::Position(0)),
            ("18446744073709551615", Place::Position(u64::MAX)),
            ("-1h", Place::Time(Moment::AgoMs(3_600_000))),
            ("-1h30m", Place::Time(Moment::AgoMs(5_400_000))),
            ("now", Place::Time(Moment::AgoMs(0))),
            ("@1782900000", Place::Time(Moment::UnixMs(1_782_900_000_000))),
            ("@1782900000.25", Place::Time(Moment::UnixMs(1_782_900_000_250))),
            ("@1782900000123", Place::Time(Moment::UnixMs(1_782_900_000_123))),
            ("1970-01-01T00:00:01Z", Place::Time(Moment::UnixMs(1_000))),
            ("1970-01-01 00:00:01.5Z", Place::Time(Moment::UnixMs(1_500))),
            ("1970-01-01T02:00:00+02:00", Place::Time(Moment::UnixMs(0))),
        ] {
            assert_eq!(parse_place(text), Ok(place), "{text}");
        }
    }

    #[test]
    fn a_time_without_a_zone_is_local() {
        for text in ["2026-07-01", "2026-07-01 12:00", "2026-07-01T12:00:00"] {
            let local = text.parse::<DateTime>().unwrap().to_zoned_datetime(TimeZone::system()).unwrap();
            assert_eq!(parse_moment(text), Ok(Moment::UnixMs(local.timestamp().as_millisecond())), "{text}");
        }
    }

    #[test]
    fn what_is_no_place_is_refused_with_examples() {
        for text in ["", "first", "-1", "-5x", "@", "@-1", "@12x", "2026-13-01", "18446744073709551616", "1.5"] {
            let refusal = parse_place(text).unwrap_err();
            assert!(refusal.contains("earliest"), "{text}: {refusal}");
        }
    }

    #[test]
    fn times_ago_count_from_the_start_of_the_command() {
        assert_eq!(Moment::AgoMs(1_000).unix_ms(5_000), 4_000);
        assert_eq!(Moment::UnixMs(7).unix_ms(5_000), 7);
    }
}

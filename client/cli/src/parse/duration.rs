//! Durations, read and written: `10ms`, `90s`, `1h30m`, `7d`; whole milliseconds inside.

use std::time::Duration;

use super::{scaled, split_number};

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// Reads a duration in milliseconds: one or more numbers with `ms`, `s`, `m`, `h`, `d` or `w`. A bare 0 needs no unit.
pub(crate) fn parse_duration_ms(text: &str) -> Result<u64, String> {
    let refusal = || format!("`{text}` is not a duration; write for example 10ms, 90s, 1h30m or 7d");
    let mut rest = text.trim();
    if rest == "0" {
        return Ok(0);
    }
    let mut total_ms = 0_u64;
    while !rest.is_empty() {
        let (number, tail) = split_number(rest);
        let next_at = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, next) = tail.split_at(next_at);
        let scale_ms = match unit {
            "ms" => 1,
            "s" => SECOND_MS,
            "m" | "min" => MINUTE_MS,
            "h" => HOUR_MS,
            "d" => DAY_MS,
            "w" => 7 * DAY_MS,
            _ => return Err(refusal()),
        };
        let part_ms = scaled(number, scale_ms).ok_or_else(refusal)?;
        total_ms = total_ms.checked_add(part_ms).ok_or_else(refusal)?;
        rest = next;
    }
    if text.trim().is_empty() { Err(refusal()) } else { Ok(total_ms) }
}

/// Reads a duration in which `forever` (and 0) means that there is no bound.
pub(crate) fn parse_duration_or_forever_ms(text: &str) -> Result<u64, String> {
    if text.eq_ignore_ascii_case("forever") { Ok(0) } else { parse_duration_ms(text) }
}

/// Reads a time-out or an interval: a duration that is not 0.
pub(crate) fn parse_timeout(text: &str) -> Result<Duration, String> {
    match parse_duration_ms(text)? {
        0 => Err("it must be longer than 0; write for example 500ms or 10s".to_owned()),
        ms => Ok(Duration::from_millis(ms)),
    }
}

/// Writes milliseconds for people, in at most two units: `7d`, `1h30m`, `10ms`.
pub(crate) fn format_duration_ms(ms: u64) -> String {
    const UNITS: [(u64, &str); 5] = [(DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "m"), (SECOND_MS, "s"), (1, "ms")];
    let Some(first) = UNITS.iter().position(|(scale_ms, _)| ms >= *scale_ms) else { return "0".to_owned() };
    let (scale_ms, unit) = UNITS[first];
    let count = ms / scale_ms;
    let more = UNITS.get(first + 1).map(|(next_ms, next_unit)| (ms % scale_ms / next_ms, next_unit));
    match more {
        Some((more, next_unit)) if more > 0 => format!("{count}{unit}{more}{next_unit}"),
        _ => format!("{count}{unit}"),
    }
}

/// Writes how long ago something was, for a column of them: seconds with a tenth, `13.7s`, else as
/// [`format_duration_ms`] does.
pub(crate) fn format_age_ms(ms: u64) -> String {
    if (SECOND_MS..MINUTE_MS).contains(&ms) {
        format!("{}.{}s", ms / SECOND_MS, ms % SECOND_MS / 100)
    } else {
        format_duration_ms(ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_every_unit_and_in_sums() {
        for (text, ms) in [
            ("0", 0),
            ("0s", 0),
            ("10ms", 10),
            ("90s", 90_000),
            ("1.5s", 1_500),
            ("1h30m", 5_400_000),
            ("7d", 604_800_000),
            ("1w", 604_800_000),
            ("1d2h3m4s5ms", 93_784_005),
        ] {
            assert_eq!(parse_duration_ms(text), Ok(ms), "{text}");
        }
        assert_eq!(parse_duration_or_forever_ms("forever"), Ok(0));
        assert_eq!(parse_timeout("2s"), Ok(Duration::from_secs(2)));
    }

    #[test]
    fn what_is_not_a_duration_is_refused() {
        for text in ["", " ", "5", "s", "-1s", "1y", "1h 30", "99999999999999999999d", "1hh"] {
            assert!(parse_duration_ms(text).is_err(), "{text}");
        }
        assert!(parse_timeout("0s").is_err());
    }

    #[test]
    fn durations_are_written_for_people_and_read_back() {
        for (ms, text) in [(0, "0"), (10, "10ms"), (1_500, "1s500ms"), (5_400_000, "1h30m"), (604_800_000, "7d")] {
            assert_eq!(format_duration_ms(ms), text);
            assert_eq!(parse_duration_ms(text), Ok(ms));
        }
        for (ms, text) in [(0, "0"), (733, "733ms"), (1_000, "1.0s"), (13_733, "13.7s"), (90_000, "1m30s")] {
            assert_eq!(format_age_ms(ms), text);
        }
    }
}

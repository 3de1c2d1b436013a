//! The small languages of the command line: durations, rates, counts, ramps. Each refusal says what would be right.

use std::time::Duration;

/// A number with `ms`, `s`, `m` or `h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds_per_unit = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("`{text}` is not a duration; write for example 500ms, 10s or 5m")),
    };
    let seconds = number.parse::<f64>().map_err(|_| format!("`{number}` is not a number"))? * seconds_per_unit;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(format!("`{text}` must be longer than zero")),
    }
}

/// A positive number, in thousands with `k`, in millions with `M`.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    match scaled(text) {
        Some(rate) if rate > 0.0 => Ok(rate),
        _ => Err(format!("`{text}` is no rate; write messages a second, for example 20000, 20k or 1.5M")),
    }
}

/// A whole number from 1 on, in thousands with `k`, in millions with `M`.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    match scaled(text) {
        Some(count) if count >= 1.0 && count.fract() == 0.0 && count < 9e15 => Ok(count as u64),
        _ => Err(format!("`{text}` is no count; write for example 500, 10k or 2M")),
    }
}

/// What a rate does in the course of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ramp {
    /// Messages a second at its beginning; may be 0.
    pub(crate) from: f64,
    /// Messages a second at its end, and from then on.
    pub(crate) to: f64,
    pub(crate) over: Duration,
}

/// `FROM..TO/DURATION`.
pub(crate) fn ramp(text: &str) -> Result<Ramp, String> {
    let wrong = || format!("`{text}` is no ramp; write for example 10k..200k/30s");
    let (rates, over) = text.split_once('/').ok_or_else(wrong)?;
    let (from, to) = rates.split_once("..").ok_or_else(wrong)?;
    let from = scaled(from).filter(|from| *from >= 0.0).ok_or_else(wrong)?;
    Ok(Ramp { from, to: rate(to)?, over: duration(over)? })
}

/// A finite number with `k` or `M`.
fn scaled(text: &str) -> Option<f64> {
    let (number, factor) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (number, 1e3),
        None => text.strip_suffix('M').map_or((text, 1.0), |number| (number, 1e6)),
    };
    let number = number.parse::<f64>().ok()? * factor;
    number.is_finite().then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_rates_and_counts_are_read() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_mins(2)));
        for text in ["", "10", "0s", "-1s", "1d", "1e99h"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!((rate("20000"), rate("20k"), rate("1.5M")), (Ok(20_000.0), Ok(20_000.0), Ok(1_500_000.0)));
        for text in ["0", "-5", "inf", "fast", "k", "NaN"] {
            assert!(rate(text).is_err(), "{text}");
        }
        assert_eq!((count("7"), count("2k"), count("1M")), (Ok(7), Ok(2_000), Ok(1_000_000)));
        for text in ["0", "1.5", "-1", "1e30", ""] {
            assert!(count(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ramps_are_read() {
        let expected = Ramp { from: 10_000.0, to: 200_000.0, over: Duration::from_secs(30) };
        assert_eq!(ramp("10k..200k/30s"), Ok(expected));
        assert_eq!(ramp("0..5/1s").map(|ramp| ramp.from), Ok(0.0));
        for text in ["10k..200k", "10k/30s", "5..0/1s", "-1..5/1s", "1..2/0s", "1..x/1s", "..2/1s"] {
            assert!(ramp(text).is_err(), "{text}");
        }
    }
}

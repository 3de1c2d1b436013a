//! Sizes in bytes, read and written: `1073741824`, `1GiB`, `1.5M`, `10MB`.

use super::{scaled, split_number};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Reads a size. `K`, `M`, `G`, `T` and `KiB`... are powers of 1024; `KB`, `MB`, `GB`, `TB` are powers of 1000.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split_number(text.trim());
    let scale = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => KIB,
        "m" | "mib" => MIB,
        "g" | "gib" => GIB,
        "t" | "tib" => TIB,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("`{text}` is not a size; write bytes, or for example 64KiB, 512MiB, 1.5GiB, 10MB")),
    };
    scaled(number, scale).ok_or_else(|| format!("`{text}` is not a size; write for example 1048576, 64KiB or 1.5GiB"))
}

/// Reads a size in which `unlimited` (and 0) means that there is no bound.
pub(crate) fn parse_size_or_unlimited(text: &str) -> Result<u64, String> {
    if text.eq_ignore_ascii_case("unlimited") { Ok(0) } else { parse_size(text) }
}

/// Writes a size for people: the largest unit that leaves at least one before the point.
pub(crate) fn format_size(bytes: u64) -> String {
    let (scale, unit) = match bytes {
        TIB.. => (TIB, "TiB"),
        GIB.. => (GIB, "GiB"),
        MIB.. => (MIB, "MiB"),
        KIB.. => (KIB, "KiB"),
        _ => return format!("{bytes} B"),
    };
    if bytes.is_multiple_of(scale) {
        format!("{} {unit}", bytes / scale)
    } else {
        format!("{:.1} {unit}", bytes as f64 / scale as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_every_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("64k", 65_536),
            ("64KiB", 65_536),
            ("64 KiB", 65_536),
            ("10MB", 10_000_000),
            ("1.5GiB", 1_610_612_736),
            ("2T", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in ["", "k", "-1", "1.2.3", "1.", "12 parsecs", "18446744073709551616", "99999999T"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(parse_size_or_unlimited("unlimited"), Ok(0));
    }

    #[test]
    fn sizes_are_written_for_people() {
        for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (65_536, "64 KiB"), (1_610_612_736, "1.5 GiB")] {
            assert_eq!(format_size(bytes), text);
        }
    }
}

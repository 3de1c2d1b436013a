//! Text that people type, turned into numbers: sizes, durations, places in a log, escapes.
//!
//! Pure functions; what "now" is, is passed in. Each error is one sentence that shows what would have been accepted.

pub(crate) mod duration;
pub(crate) mod escape;
pub(crate) mod place;
pub(crate) mod size;

/// Splits `1.5GiB` into `1.5` and `GiB`: the number, then whatever follows it.
fn split_number(text: &str) -> (&str, &str) {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text.split_at(unit_at)
}

/// `number` times `scale`, exactly where it can be: a whole number never passes through floating point.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale);
    }
    let (whole, fraction) = number.split_once('.')?;
    let digits = u32::try_from(fraction.len()).ok().filter(|digits| (1..=9).contains(digits))?;
    let whole = whole.parse::<u64>().ok()?.checked_mul(scale)?;
    let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(scale) / u128::from(10_u64.pow(digits));
    whole.checked_add(u64::try_from(part).ok()?)
}

//! How large values are. Sizes are drawn once, before the run, into a ring that each stream walks from a place of its own:
//! a message costs no random number, and how many bytes a range of messages has is known from sums.

use std::fmt;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::weighted::WeightedAliasIndex;
use rand_distr::{Distribution, LogNormal, Uniform};

use crate::payload::HEADER_BYTES;

/// The largest value that is made: a broker's own limit is lower or the same.
pub(crate) const SIZE_BYTES_MAX: u32 = 64 << 20;
/// Sizes drawn. A prime: no set size and no number of partitions divides it, so no stream sees a part of them only.
const DRAWS: usize = 65_521;
/// The standard normal distribution's 99th percentile.
const NORMAL_P99: f64 = 2.326_347_874;

/// What `--size` asks for, in bytes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SizeSpec {
    Fixed(u32),
    /// All sizes from the first to the second, each as often as the others.
    Uniform(u32, u32),
    /// Sizes with their weights.
    Weighted(Vec<(u32, f64)>),
    /// The median and the 99th percentile of a log-normal distribution, cut off at four times the latter.
    LogNormal(u32, u32),
}

/// `BYTES`, `MIN..MAX`, `BYTES:WEIGHT,...` or `lognormal:P50..P99`.
pub(crate) fn parse(text: &str) -> Result<SizeSpec, String> {
    let range = |text: &str| -> Result<(u32, u32), String> {
        let (low, high) = text.split_once("..").ok_or_else(|| format!("`{text}` is no range of sizes"))?;
        let (low, high) = (bytes(low)?, bytes(high)?);
        if low < high { Ok((low, high)) } else { Err(format!("in `{text}` the first must be below the second")) }
    };
    if let Some(percentiles) = text.strip_prefix("lognormal:") {
        return range(percentiles).map(|(p50, p99)| SizeSpec::LogNormal(p50, p99));
    }
    if text.contains(':') {
        return text.split(',').map(weighted).collect::<Result<_, _>>().map(SizeSpec::Weighted);
    }
    if text.contains("..") {
        return range(text).map(|(low, high)| SizeSpec::Uniform(low, high));
    }
    bytes(text).map(SizeSpec::Fixed)
}

fn weighted(text: &str) -> Result<(u32, f64), String> {
    let (size, weight) = text.split_once(':').ok_or_else(|| format!("`{text}` is not BYTES:WEIGHT"))?;
    match weight.parse::<f64>() {
        Ok(weight) if weight.is_finite() && weight > 0.0 => Ok((bytes(size)?, weight)),
        _ => Err(format!("`{weight}` is no weight; weights are above 0")),
    }
}

fn bytes(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(bytes) if (HEADER_BYTES as u32..=SIZE_BYTES_MAX).contains(&bytes) => Ok(bytes),
        _ => {
            Err(format!("`{text}` is no size from {HEADER_BYTES} (what verification takes) to {SIZE_BYTES_MAX} bytes"))
        }
    }
}

impl fmt::Display for SizeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(bytes) => write!(f, "{bytes}"),
            Self::Uniform(low, high) => write!(f, "{low}..{high}"),
            Self::Weighted(sizes) => {
                let parts: Vec<_> = sizes.iter().map(|(bytes, weight)| format!("{bytes}:{weight}")).collect();
                f.write_str(&parts.join(","))
            }
            Self::LogNormal(p50, p99) => write!(f, "lognormal:{p50}..{p99}"),
        }
    }
}

/// The sizes of a run.
#[derive(Debug)]
pub(crate) struct Sizes {
    ring: Vec<u32>,
    /// `sums[n]`: the bytes of the first `n` of the ring.
    sums: Vec<u64>,
}

impl Sizes {
    /// The same for the same seed.
    pub(crate) fn new(spec: &SizeSpec, seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let ring: Vec<u32> = match spec {
            SizeSpec::Fixed(bytes) => vec![*bytes],
            SizeSpec::Uniform(low, high) => {
                let sizes = Uniform::new_inclusive(*low, *high).expect("the first is below the second");
                sizes.sample_iter(&mut random).take(DRAWS).collect()
            }
            SizeSpec::Weighted(sizes) => {
                let weights = sizes.iter().map(|(_, weight)| *weight).collect();
                let index = WeightedAliasIndex::new(weights).expect("weights are finite and above 0");
                index.sample_iter(&mut random).take(DRAWS).map(|at| sizes[at].0).collect()
            }
            SizeSpec::LogNormal(p50, p99) => {
                let (median, sigma) = (f64::from(*p50).ln(), (f64::from(*p99) / f64::from(*p50)).ln() / NORMAL_P99);
                let sizes = LogNormal::new(median, sigma).expect("the spread is finite");
                let bounds = (HEADER_BYTES as f64, f64::from(SIZE_BYTES_MAX.min(p99.saturating_mul(4))));
                let bounded = |size: f64| size.clamp(bounds.0, bounds.1) as u32;
                sizes.sample_iter(&mut random).take(DRAWS).map(bounded).collect()
            }
        };
        let mut sums = Vec::with_capacity(ring.len() + 1);
        sums.push(0);
        for bytes in &ring {
            sums.push(sums[sums.len() - 1] + u64::from(*bytes));
        }
        Self { ring, sums }
    }

    /// The size of message `number` of the stream that begins at `salt`.
    pub(crate) fn get(&self, salt: u64, number: u64) -> usize {
        if self.ring.len() == 1 {
            return self.ring[0] as usize;
        }
        self.ring[(salt.wrapping_add(number) % self.ring.len() as u64) as usize] as usize
    }

    /// The bytes of the messages `numbers` of that stream.
    pub(crate) fn total(&self, salt: u64, numbers: &std::ops::Range<u64>) -> u64 {
        let ring = self.ring.len() as u64;
        let salt = salt % ring;
        let up_to = |number: u64| {
            let end = salt + number;
            end / ring * self.sums[self.ring.len()] + self.sums[(end % ring) as usize]
        };
        up_to(numbers.end) - up_to(numbers.start)
    }

    pub(crate) fn mean(&self) -> f64 {
        self.sums[self.ring.len()] as f64 / self.ring.len() as f64
    }

    pub(crate) fn max(&self) -> usize {
        self.ring.iter().copied().max().unwrap_or_default() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(text: &str) -> Sizes {
        Sizes::new(&parse(text).unwrap(), 1)
    }

    #[test]
    fn sizes_are_read_and_shown_as_they_were_written() {
        for text in ["200", "100..1000", "100:3,4000:1", "lognormal:300..5000"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        for text in ["31", "", "1000..100", "100..", "100:0", "100:-1", "100:x", "lognormal:300", "99999999999", "a:1"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_distributed_as_asked() {
        let uniform = sizes("100..300");
        assert!((uniform.mean() - 200.0).abs() < 2.0 && uniform.max() == 300, "{}", uniform.mean());
        let weighted = sizes("100:3,500:1");
        assert!((weighted.mean() - 200.0).abs() < 5.0, "{}", weighted.mean());
        assert!(weighted.ring.iter().all(|size| [100, 500].contains(size)));
        let mut drawn = sizes("lognormal:300..5000").ring;
        drawn.sort_unstable();
        let (p50, p99) = (drawn[DRAWS / 2], drawn[DRAWS * 99 / 100]);
        assert!((280..320).contains(&p50) && (4_500..5_500).contains(&p99), "{p50} {p99}");
        assert!(drawn[DRAWS - 1] <= 20_000 && drawn[0] >= HEADER_BYTES as u32);
    }

    #[test]
    fn the_bytes_of_a_range_are_those_of_its_messages() {
        for text in ["200", "100..1000"] {
            let sizes = sizes(text);
            for (salt, range) in
                [(0, 0..10), (7, 65_000..66_000), (u64::MAX / 3, 5..5), (123_456_789, 200_000..200_003)]
            {
                let one_by_one: u64 = range.clone().map(|number| sizes.get(salt, number) as u64).sum();
                assert_eq!(sizes.total(salt, &range), one_by_one, "{text} {salt} {range:?}");
            }
        }
    }
}

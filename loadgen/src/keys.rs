//! Which keys messages have, and so which partitions they go to. A set goes to one partition: that is chosen by how often
//! its keys occur, then each message's key among its own; sets of one message are plain draws from all keys.

use std::fmt;

use corelane_client::partition_for_key;
use rand::RngExt;
use rand::rngs::SmallRng;
use rand_distr::Distribution;
use rand_distr::weighted::WeightedAliasIndex;

use crate::parse;

/// Bytes of each key: `key-` and twelve digits.
pub(crate) const KEY_BYTES: usize = 16;
/// The most keys that there may be: their tables take 16 bytes for each, for each number of partitions.
const KEYS_MAX: u64 = 10_000_000;
/// The exponent of the "zipfian" of YCSB.
const EXPONENT: f64 = 0.99;

/// What `--keys` asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum KeySpec {
    /// Messages have no key; partitions get sets in turn.
    None,
    /// So many keys, each as often as the others.
    Uniform(u32),
    /// So many keys; the n-th is as frequent as 1 / n to this exponent.
    Zipf(u32, f64),
}

/// `none`, `uniform:N` or `zipf:N[:EXPONENT]`.
pub(crate) fn parse(text: &str) -> Result<KeySpec, String> {
    let wrong = || format!("`{text}` is no distribution of keys; write none, uniform:10k or zipf:1M:0.99");
    if text == "none" {
        return Ok(KeySpec::None);
    }
    let (kind, numbers) = text.split_once(':').ok_or_else(wrong)?;
    let (keys, exponent) = numbers.split_once(':').map_or((numbers, None), |(keys, rest)| (keys, Some(rest)));
    let keys = parse::count(keys)
        .ok()
        .filter(|keys| *keys <= KEYS_MAX)
        .ok_or_else(|| format!("`{keys}` is no number of keys from 1 to {}M", KEYS_MAX / 1_000_000))?
        as u32;
    match (kind, exponent) {
        ("uniform", None) => Ok(KeySpec::Uniform(keys)),
        ("zipf", None) => Ok(KeySpec::Zipf(keys, EXPONENT)),
        ("zipf", Some(exponent)) => match exponent.parse::<f64>() {
            Ok(exponent) if (0.0..=10.0).contains(&exponent) => Ok(KeySpec::Zipf(keys, exponent)),
            _ => Err(format!("`{exponent}` is no exponent from 0 to 10")),
        },
        _ => Err(wrong()),
    }
}

impl fmt::Display for KeySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Uniform(keys) => write!(f, "uniform:{keys}"),
            Self::Zipf(keys, exponent) => write!(f, "zipf:{keys}:{exponent}"),
        }
    }
}

/// The bytes of key `number`.
pub(crate) fn key(number: u32) -> [u8; KEY_BYTES] {
    let mut key = *b"key-000000000000";
    let (mut at, mut rest) = (KEY_BYTES, number);
    while rest > 0 {
        at -= 1;
        key[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// The keys over the partitions of a topic.
#[derive(Debug)]
pub(crate) struct KeyTable {
    /// How often each partition is chosen.
    partitions: WeightedAliasIndex<f64>,
    /// The keys of each partition.
    keys: Vec<Own>,
}

/// The keys of one partition.
#[derive(Debug, Default)]
struct Own {
    numbers: Vec<u32>,
    /// How often each is chosen; none: all alike.
    weights: Option<WeightedAliasIndex<f64>>,
}

impl KeyTable {
    /// None if messages have no keys.
    pub(crate) fn new(spec: KeySpec, partitions: u32) -> Option<Self> {
        let (keys, exponent) = match spec {
            KeySpec::None => return None,
            KeySpec::Uniform(keys) => (keys, None),
            KeySpec::Zipf(keys, exponent) => (keys, Some(exponent)),
        };
        let weight = |number: u32| exponent.map_or(1.0, |exponent| (f64::from(number) + 1.0).powf(-exponent));
        let mut numbers = vec![Vec::new(); partitions as usize];
        let mut masses = vec![0.0; partitions as usize];
        for number in 0..keys {
            let partition = partition_for_key(&key(number), partitions) as usize;
            numbers[partition].push(number);
            masses[partition] += weight(number);
        }
        let own = |numbers: Vec<u32>| {
            let weights = exponent.filter(|_| !numbers.is_empty()).map(|_| {
                let weights = numbers.iter().map(|number| weight(*number)).collect();
                WeightedAliasIndex::new(weights).expect("weights are above 0, up to 10M of them")
            });
            Own { numbers, weights }
        };
        let partitions = WeightedAliasIndex::new(masses).expect("there is at least one key");
        Some(Self { partitions, keys: numbers.into_iter().map(own).collect() })
    }

    /// The partition of the next set: one that has keys.
    pub(crate) fn partition(&self, random: &mut SmallRng) -> u32 {
        self.partitions.sample(random) as u32
    }

    /// A key of that partition.
    pub(crate) fn key(&self, partition: u32, random: &mut SmallRng) -> [u8; KEY_BYTES] {
        let own = &self.keys[partition as usize];
        let at = match &own.weights {
            Some(weights) => weights.sample(random),
            None => random.random_range(..own.numbers.len()),
        };
        key(own.numbers[at])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::SeedableRng;

    use super::*;

    const DRAWS: usize = 200_000;

    /// How often each key came, in single messages; checks that each goes to its own partition.
    fn drawn(spec: KeySpec, partitions: u32) -> BTreeMap<[u8; KEY_BYTES], usize> {
        let table = KeyTable::new(spec, partitions).unwrap();
        let mut random = SmallRng::seed_from_u64(3);
        let mut counts = BTreeMap::new();
        for _ in 0..DRAWS {
            let partition = table.partition(&mut random);
            let key = table.key(partition, &mut random);
            assert_eq!(partition_for_key(&key, partitions), partition);
            *counts.entry(key).or_insert(0) += 1;
        }
        counts
    }

    #[test]
    fn distributions_are_read_and_shown() {
        for text in ["none", "uniform:10000", "zipf:500:1.2"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        assert_eq!(parse("zipf:1M"), Ok(KeySpec::Zipf(1_000_000, EXPONENT)));
        for text in ["", "uniform", "uniform:0", "uniform:5:1", "zipf:5:x", "zipf:5:-1", "normal:5", "uniform:11M"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn uniform_keys_come_equally_often_whatever_their_partitions_have() {
        let counts = drawn(KeySpec::Uniform(50), 7);
        assert_eq!(counts.len(), 50);
        let mean = DRAWS / 50;
        assert!(counts.values().all(|count| count.abs_diff(mean) < mean / 8), "{counts:?}");
    }

    #[test]
    fn the_nth_zipf_key_comes_an_nth_as_often_as_the_first() {
        let counts = drawn(KeySpec::Zipf(1_000, 1.0), 5);
        let first = counts[&key(0)] as f64;
        for number in [1, 2, 4, 9] {
            let ratio = first / counts[&key(number)] as f64;
            let expected = f64::from(number) + 1.0;
            assert!((ratio / expected - 1.0).abs() < 0.15, "key {number}: {ratio}");
        }
    }

    #[test]
    fn partitions_without_keys_are_never_chosen() {
        assert_eq!(drawn(KeySpec::Uniform(1), 100).len(), 1);
        assert_eq!((&key(0), &key(9_999_999)), (b"key-000000000000", b"key-000009999999"));
    }
}

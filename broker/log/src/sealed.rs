//! Small files of JSON that an operator may read and a program must be able to trust: one line of JSON, one line with
//! the CRC-32 (IEEE) of the first. Pure.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why a sealed file is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// No second line with a checksum: cut short, or not such a file.
    #[error("it has no checksum line: it was cut short or is of another kind")]
    Unsealed,
    /// The checksum is of another content.
    #[error("its checksum is {found:08x}, its content has {computed:08x}: it is damaged or was edited by hand")]
    Mismatch {
        /// As the file says.
        found: u32,
        /// As the content says.
        computed: u32,
    },
    /// The content is not what was expected.
    #[error("its content cannot be read: {0}")]
    Content(String),
}

const MARK: &str = "crc32 ";

/// The content of a sealed file.
pub(crate) fn seal<T: Serialize>(value: &T) -> Vec<u8> {
    let mut content = serde_json::to_vec(value).expect("a record of ours turns into JSON");
    let crc = crc32fast::hash(&content);
    content.extend_from_slice(format!("\n{MARK}{crc:08x}\n").as_bytes());
    content
}

/// Reads what [`seal`] wrote.
pub(crate) fn open<T: DeserializeOwned>(content: &[u8]) -> Result<T, SealError> {
    let end = content.iter().position(|&byte| byte == b'\n').ok_or(SealError::Unsealed)?;
    let (json, rest) = content.split_at(end);
    let found = std::str::from_utf8(&rest[1..])
        .ok()
        .and_then(|line| line.strip_prefix(MARK)?.strip_suffix('\n'))
        .and_then(|digits| u32::from_str_radix(digits, 16).ok())
        .ok_or(SealError::Unsealed)?;
    let computed = crc32fast::hash(json);
    if found != computed {
        return Err(SealError::Mismatch { found, computed });
    }
    serde_json::from_slice(json).map_err(|error| SealError::Content(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_file_opens_and_every_cut_or_flip_of_it_does_not() {
        let value = vec!["one".to_owned(), "two".to_owned()];
        let content = seal(&value);
        assert_eq!(open::<Vec<String>>(&content), Ok(value));
        for cut in 0..content.len() {
            assert!(open::<Vec<String>>(&content[..cut]).is_err(), "cut at {cut}");
        }
        for at in 0..content.len() {
            let mut flipped = content.clone();
            // Bit 5 is the case of a hexadecimal digit; bit 0 always changes the meaning.
            flipped[at] ^= 1;
            assert!(open::<Vec<String>>(&flipped).is_err(), "flip at {at}");
        }
    }
}

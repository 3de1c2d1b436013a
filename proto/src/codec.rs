//! The codecs of wrappers. Each compressing one is a cargo feature; one that is not built in is still a known codec and
//! earns an error that names the feature. Unpacking never writes, nor allocates, beyond the size it is given.

use std::fmt;

/// What a message's value is, by bits 0 to 2 of its attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Codec {
    /// The application's bytes.
    #[default]
    Plain = 0,
    /// A message set, as one LZ4 block (not a frame).
    Lz4 = 1,
    /// A message set, as Zstandard frames.
    Zstd = 2,
    /// A message set, in Snappy's raw format.
    Snappy = 3,
    /// A message set, as a gzip member.
    Gzip = 4,
    /// A message set as it is.
    StoredSet = 5,
    /// Nothing: bytes that readers skip.
    Gap = 7,
}

impl Codec {
    /// The codec of the three bits; 6 is none.
    pub fn from_bits(bits: u8) -> Option<Codec> {
        match bits {
            0 => Some(Codec::Plain),
            1 => Some(Codec::Lz4),
            2 => Some(Codec::Zstd),
            3 => Some(Codec::Snappy),
            4 => Some(Codec::Gzip),
            5 => Some(Codec::StoredSet),
            7 => Some(Codec::Gap),
            _ => None,
        }
    }

    /// Whether the value is a message set.
    pub fn is_wrapper(self) -> bool {
        !matches!(self, Codec::Plain | Codec::Gap)
    }

    /// Its name, as options and reports write it.
    pub fn name(self) -> &'static str {
        match self {
            Codec::Plain => "plain",
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
            Codec::Snappy => "snappy",
            Codec::Gzip => "gzip",
            Codec::StoredSet => "stored-set",
            Codec::Gap => "gap",
        }
    }

    /// Whether this build can pack and unpack it.
    pub fn is_enabled(self) -> bool {
        match self {
            Codec::Plain | Codec::StoredSet | Codec::Gap => true,
            Codec::Lz4 => cfg!(feature = "lz4"),
            Codec::Zstd => cfg!(feature = "zstd"),
            Codec::Snappy => cfg!(feature = "snappy"),
            Codec::Gzip => cfg!(feature = "gzip"),
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why bytes were not packed or unpacked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The feature is off in this build.
    #[error("codec {0} is not built in: enable the feature \"{0}\" of corelane-proto")]
    Disabled(Codec),
    /// A plain message or a gap holds no set.
    #[error("codec {0} does not carry a message set")]
    NotAWrapper(Codec),
    /// The packed bytes are damaged.
    #[error("{codec} cannot unpack: {reason}")]
    Damaged {
        /// The codec.
        codec: Codec,
        /// What it says.
        reason: String,
    },
    /// The packed bytes hold more or less than was claimed.
    #[error("{codec} unpacks to another size than the {claimed} bytes claimed")]
    SizeDiffers {
        /// The codec.
        codec: Codec,
        /// The claim, in bytes.
        claimed: usize,
    },
    /// The compressor failed.
    #[error("{codec} cannot pack: {reason}")]
    Pack {
        /// The codec.
        codec: Codec,
        /// What it says.
        reason: String,
    },
}

/// Appends the packed form of `set` to `out`.
pub(crate) fn pack(codec: Codec, set: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
    match codec {
        Codec::StoredSet => out.extend_from_slice(set),
        #[cfg(feature = "lz4")]
        Codec::Lz4 => {
            let at = out.len();
            out.resize(at + lz4_flex::block::get_maximum_output_size(set.len()), 0);
            let packed = lz4_flex::block::compress_into(set, &mut out[at..])
                .map_err(|error| CodecError::Pack { codec, reason: error.to_string() })?;
            out.truncate(at + packed);
        }
        #[cfg(feature = "zstd")]
        Codec::Zstd => out.append(
            &mut zstd_contexts::pack(set).map_err(|error| CodecError::Pack { codec, reason: error.to_string() })?,
        ),
        #[cfg(feature = "snappy")]
        Codec::Snappy => {
            let at = out.len();
            out.resize(at + snap::raw::max_compress_len(set.len()), 0);
            let packed = snap::raw::Encoder::new()
                .compress(set, &mut out[at..])
                .map_err(|error| CodecError::Pack { codec, reason: error.to_string() })?;
            out.truncate(at + packed);
        }
        #[cfg(feature = "gzip")]
        Codec::Gzip => {
            use std::io::Write;
            let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::default());
            encoder
                .write_all(set)
                .and_then(|()| encoder.try_finish())
                .map_err(|error| CodecError::Pack { codec, reason: error.to_string() })?;
        }
        Codec::Plain | Codec::Gap => return Err(CodecError::NotAWrapper(codec)),
        #[allow(unreachable_patterns, reason = "reached when a feature is off")]
        disabled => return Err(CodecError::Disabled(disabled)),
    }
    Ok(())
}

/// Unpacks exactly `claimed` bytes. The caller has checked `claimed` against its limit.
pub(crate) fn unpack(codec: Codec, packed: &[u8], claimed: usize) -> Result<Vec<u8>, CodecError> {
    #[cfg(any(feature = "lz4", feature = "zstd", feature = "snappy", feature = "gzip"))]
    let damaged = |reason: &dyn fmt::Display| CodecError::Damaged { codec, reason: reason.to_string() };
    let set = match codec {
        Codec::StoredSet => packed.get(..claimed).unwrap_or_default().to_vec(),
        #[cfg(feature = "lz4")]
        Codec::Lz4 => {
            // A byte of LZ4 stands for at most 255 bytes, so a larger claim is false before anything is allocated.
            if claimed / 255 > packed.len() {
                return Err(CodecError::SizeDiffers { codec, claimed });
            }
            let mut set = vec![0; claimed];
            let bytes = lz4_flex::block::decompress_into(packed, &mut set).map_err(|error| damaged(&error))?;
            set.truncate(bytes);
            set
        }
        #[cfg(feature = "zstd")]
        Codec::Zstd => zstd_contexts::unpack(packed, claimed).map_err(|error| damaged(&error))?,
        #[cfg(feature = "snappy")]
        Codec::Snappy => {
            if snap::raw::decompress_len(packed).map_err(|error| damaged(&error))? != claimed {
                return Err(CodecError::SizeDiffers { codec, claimed });
            }
            snap::raw::Decoder::new().decompress_vec(packed).map_err(|error| damaged(&error))?
        }
        #[cfg(feature = "gzip")]
        Codec::Gzip => {
            use std::io::Read;
            // Deflate makes at most 1032 bytes of one, so a larger claim is false before anything is allocated.
            if claimed / 1032 > packed.len() {
                return Err(CodecError::SizeDiffers { codec, claimed });
            }
            let mut set = vec![0; claimed];
            let mut decoder = flate2::read::GzDecoder::new(packed);
            decoder.read_exact(&mut set).map_err(|error| damaged(&error))?;
            // The read behind the end tells "exactly" from "at least", and checks the member's own checksum.
            match decoder.read(&mut [0]).map_err(|error| damaged(&error))? {
                0 => set,
                _ => return Err(CodecError::SizeDiffers { codec, claimed }),
            }
        }
        Codec::Plain | Codec::Gap => return Err(CodecError::NotAWrapper(codec)),
        #[allow(unreachable_patterns, reason = "reached when a feature is off")]
        disabled => return Err(CodecError::Disabled(disabled)),
    };
    if set.len() == claimed { Ok(set) } else { Err(CodecError::SizeDiffers { codec, claimed }) }
}

/// A Zstandard context costs more to make than a small set to pack; so each thread keeps one of each kind.
#[cfg(feature = "zstd")]
mod zstd_contexts {
    use std::cell::RefCell;
    use std::io;

    use zstd::bulk::{Compressor, Decompressor};

    thread_local! {
        static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
        static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
    }

    /// One frame, which names its size.
    pub(super) fn pack(set: &[u8]) -> io::Result<Vec<u8>> {
        COMPRESSOR.with_borrow_mut(|kept| {
            let compressor = match kept {
                Some(compressor) => compressor,
                None => kept.insert(Compressor::new(zstd::DEFAULT_COMPRESSION_LEVEL)?),
            };
            compressor.compress(set)
        })
    }

    /// At most `claimed` bytes; more is an error.
    pub(super) fn unpack(packed: &[u8], claimed: usize) -> io::Result<Vec<u8>> {
        DECOMPRESSOR.with_borrow_mut(|kept| {
            let decompressor = match kept {
                Some(decompressor) => decompressor,
                None => kept.insert(Decompressor::new()?),
            };
            decompressor.decompress(packed, claimed)
        })
    }
}

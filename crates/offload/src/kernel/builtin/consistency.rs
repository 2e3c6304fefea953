//! Consistent reading of an object: the card verifies the object's CRC64, and reads the object
//! again if it does not match (StRoM §6.3).
//!
//! An object ends with the CRC-64/NVME of the bytes before it, little-endian, as in Pilaf. The
//! result is the whole object, checksum included.

use super::reader::{Reader, require};
use crate::kernel::{CallStatus, Context};

/// Bytes of the checksum.
pub const CHECKSUM_LEN: usize = 8;
/// Bytes of [`Params`].
pub const PARAMS_LEN: usize = 16;
/// The most readings of an object if the requester names no number.
pub const READINGS: u32 = 64;

/// The object, and how often it may be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// The object's address in granted memory.
    pub address: u64,
    /// The object's length in bytes, checksum included.
    pub len: u32,
    /// The most readings; 0 means [`READINGS`].
    pub readings: u32,
}

impl Params {
    /// Reads parameters.
    ///
    /// # Errors
    /// [`CallStatus::BAD_PARAMS`] if the object is not longer than its checksum.
    pub fn parse(bytes: &[u8]) -> Result<Params, CallStatus> {
        let mut reader = Reader(bytes);
        let params = Params { address: reader.u64()?, len: reader.u32()?, readings: reader.u32()? };
        reader.end()?;
        require(params.len as usize > CHECKSUM_LEN)?;
        Ok(params)
    }

    /// The parameters' bytes.
    pub fn to_bytes(&self) -> [u8; PARAMS_LEN] {
        let mut out = [0; PARAMS_LEN];
        out[..8].copy_from_slice(&self.address.to_le_bytes());
        out[8..12].copy_from_slice(&self.len.to_le_bytes());
        out[12..].copy_from_slice(&self.readings.to_le_bytes());
        out
    }
}

/// The checksum of an object's data.
pub fn checksum(data: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, data)
}

/// The CRC of any object that ends with its own checksum: the complement of the residue in the
/// catalogue of CRCs.
const OF_CONSISTENT: u64 = !0xF310_303B_2B6F_6E42;

/// Whether an object's last 8 bytes are the checksum of the bytes before them.
///
/// Computes the CRC over the checksum, too, instead of comparing it. An object's length is usually
/// a multiple of the processor's vectors and that of its data is not, which costs half as much
/// again.
pub fn is_consistent(object: &[u8]) -> bool {
    object.len() >= CHECKSUM_LEN && checksum(object) == OF_CONSISTENT
}

/// The kernel, called by RPC: the result is the object.
///
/// # Errors
/// [`CallStatus::INCONSISTENT`] if no reading was consistent.
pub async fn consistency(context: Context) -> Result<(), CallStatus> {
    let Params { address, len, readings } = context.params(Params::parse).await?;
    let readings = if readings == 0 { READINGS } else { readings };
    for reading in 0..readings {
        if reading > 0 {
            // The program that writes the object gets time to finish.
            context.yield_now().await?;
        }
        context.fetch(address, len).await?;
        let consistent = context
            .fetched(|object| {
                let consistent = is_consistent(object);
                if !consistent {
                    object.clear();
                }
                consistent
            })
            .await?;
        if consistent {
            return Ok(());
        }
    }
    Err(CallStatus::INCONSISTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_crc_64_nvme() {
        // The check value of the CRC catalogue.
        assert_eq!(checksum(b"123456789"), 0xAE8B_1486_0A79_9888);
        let mut object = b"123456789".to_vec();
        object.extend_from_slice(&0xAE8B_1486_0A79_9888_u64.to_le_bytes());
        assert!(is_consistent(&object));
        object[3] ^= 1;
        assert!(!is_consistent(&object) && !is_consistent(&[0; 7]));
    }

    #[test]
    fn an_object_of_any_length_is_consistent_with_its_checksum_only() {
        for len in 0..300 {
            let mut object: Vec<u8> = (0..len).map(|i| (i * i % 251) as u8).collect();
            object.extend_from_slice(&checksum(&object).to_le_bytes());
            assert!(is_consistent(&object), "{len}");
            for at in [0, object.len() / 2, object.len() - 1] {
                object[at] ^= 0x80;
                assert!(!is_consistent(&object), "{len}, {at}");
                object[at] ^= 0x80;
            }
        }
    }

    #[test]
    fn parameters_round_trip() {
        let params = Params { address: 3, len: 9, readings: 2 };
        assert_eq!(Params::parse(&params.to_bytes()), Ok(params));
        let short = Params { len: 8, ..params };
        assert_eq!(Params::parse(&short.to_bytes()), Err(CallStatus::BAD_PARAMS));
    }
}

//! Consistent reading of an object: its CRC64 is checked on the card, and the object read again if
//! it does not fit (StRoM §6.3).
//!
//! An object ends with the CRC-64/NVME of the bytes before, little-endian, as Pilaf's do. It is
//! delivered whole.

use super::reader::{Reader, require};
use crate::kernel::{CallStatus, Context};

/// Bytes of the checksum.
pub const CHECKSUM_LEN: usize = 8;
/// Bytes of [`Params`].
pub const PARAMS_LEN: usize = 16;
/// Readings of an object, if the requester does not say.
pub const READINGS: u32 = 64;

/// Which object, and how often it may be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// Its address.
    pub address: u64,
    /// Its bytes, checksum included.
    pub len: u32,
    /// Readings, at most; zero: [`READINGS`].
    pub readings: u32,
}

impl Params {
    /// Reads parameters.
    ///
    /// # Errors
    /// [`CallStatus::BAD_PARAMS`]: an object that is not longer than its checksum.
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

/// The checksum of anything that ends with its own checksum, little-endian: the complement of what
/// the catalogue of CRCs calls the residue.
const OF_CONSISTENT: u64 = !0xF310_303B_2B6F_6E42;

/// Does an object, checksum included, fit its checksum?
///
/// That is summed, too, instead of compared: the length of an object is as a rule a multiple of the
/// processor's vectors, and that of its data is not, which costs half as much again.
pub fn is_consistent(object: &[u8]) -> bool {
    object.len() >= CHECKSUM_LEN && checksum(object) == OF_CONSISTENT
}

/// The kernel.
///
/// # Errors
/// [`CallStatus::INCONSISTENT`] if no reading was consistent.
pub async fn consistency(context: Context) -> Result<(), CallStatus> {
    let Params { address, len, readings } = context.params(Params::parse).await?;
    let readings = if readings == 0 { READINGS } else { readings };
    for reading in 0..readings {
        if reading > 0 {
            // Whoever writes the object gets time to finish.
            context.yield_now().await?;
        }
        context.fetch(address, len).await?;
        let consistent = context
            .output(|object| {
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

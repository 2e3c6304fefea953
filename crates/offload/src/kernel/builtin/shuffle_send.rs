//! Shuffle on the sending side: partitions values of local memory among queue pairs, and so among
//! machines (StRoM §6.4, footnote 9). The local host calls it.
//!
//! Each partition has a buffer of one kilobyte that is sent by RDMA WRITE when it is full. It is
//! larger than on the receiving side, since a packet costs more than a memory access.

use remora_nic::queue::RemoteAddress;

use super::reader::{Reader, require};
use crate::kernel::{CallStatus, Context};

/// Bytes of [`Params`] before its targets.
pub const PARAMS_LEN: usize = 16;
/// Bytes of a [`Target`].
pub const TARGET_LEN: usize = 24;
/// The most low bits of a value that choose its target: 64 targets.
pub const BITS_MAX: u8 = 6;
/// Bytes of one RDMA WRITE.
const BUFFER: usize = 1024;
/// Bytes of memory that are read at a time.
const READ: usize = 4096;

/// The destination of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// A queue pair of this card, in the invocation's protection domain.
    pub qpn: u32,
    /// The destination in the memory of that queue pair's peer.
    pub to: RemoteAddress,
    /// The number of values that fit there.
    pub values: u64,
}

/// The values, and their destinations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Params {
    /// The address of the values, in granted memory.
    pub address: u64,
    /// The number of values.
    pub values: u32,
    /// The targets: a power of two, at most 64.
    pub targets: Vec<Target>,
}

impl Params {
    /// Reads parameters.
    ///
    /// # Errors
    /// [`CallStatus::BAD_PARAMS`] if the bytes are no valid parameters.
    pub fn parse(bytes: &[u8]) -> Result<Params, CallStatus> {
        let mut reader = Reader(bytes);
        let (address, values, bits) = (reader.u64()?, reader.u32()?, reader.u32()?);
        require(bits <= BITS_MAX.into() && reader.0.len() == TARGET_LEN << bits)?;
        let mut targets = Vec::with_capacity(1 << bits);
        for _ in 0..1 << bits {
            let (qpn, rkey, addr) = (reader.u32()?, reader.u32()?, reader.u64()?);
            let values = reader.u64()?;
            require(values.checked_mul(8).and_then(|len| addr.checked_add(len)).is_some())?;
            targets.push(Target { qpn, to: RemoteAddress { addr, rkey }, values });
        }
        Ok(Params { address, values, targets })
    }

    /// The parameters' bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.address.to_le_bytes().to_vec();
        out.extend_from_slice(&self.values.to_le_bytes());
        let bits = self.targets.len().max(1).ilog2();
        out.extend_from_slice(&bits.to_le_bytes());
        for target in &self.targets {
            out.extend_from_slice(&target.qpn.to_le_bytes());
            out.extend_from_slice(&target.to.rkey.to_le_bytes());
            out.extend_from_slice(&target.to.addr.to_le_bytes());
            out.extend_from_slice(&target.values.to_le_bytes());
        }
        out
    }
}

/// The kernel, called by the local host. It ends when all WRITEs are acknowledged; the result is
/// the number of values that each target got, u64 each.
///
/// # Errors
/// [`CallStatus::TOO_LONG`] if values did not fit a target. Values before them have been sent.
/// [`CallStatus::ACCESS`] for a peer, which may not send by connections of others.
pub async fn shuffle_send(context: Context) -> Result<(), CallStatus> {
    if !context.is_local() {
        return Err(CallStatus::ACCESS);
    }
    let Params { address, values, mut targets } = context.params(Params::parse).await?;
    let mask = targets.len() as u64 - 1;
    let mut buffers: Vec<Vec<u8>> = targets.iter().map(|_| Vec::with_capacity(BUFFER)).collect();
    let mut sent = vec![0u64; targets.len()];
    let mut chunk = vec![0; READ];
    let len = u64::from(values) * 8;
    let mut at = 0;
    while at < len {
        let part = (len - at).min(READ as u64) as usize;
        context.read(address.wrapping_add(at), &mut chunk[..part]).await?;
        for value in chunk[..part].as_chunks::<8>().0 {
            let to = (u64::from_le_bytes(*value) & mask) as usize;
            buffers[to].extend_from_slice(value);
            if buffers[to].len() == BUFFER {
                send(context, &mut targets[to], &mut buffers[to], &mut sent[to]).await?;
            }
        }
        at += part as u64;
    }
    for to in 0..targets.len() {
        send(context, &mut targets[to], &mut buffers[to], &mut sent[to]).await?;
    }
    context.sent().await?;
    if context.max_len() > 0 {
        context
            .output(|out| sent.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes())))
            .await?;
    }
    Ok(())
}

async fn send(
    context: Context,
    target: &mut Target,
    buffer: &mut Vec<u8>,
    sent: &mut u64,
) -> Result<(), CallStatus> {
    let values = buffer.len() as u64 / 8;
    if values == 0 {
        return Ok(());
    }
    target.values = target.values.checked_sub(values).ok_or(CallStatus::TOO_LONG)?;
    context.send_to(target.qpn, target.to, buffer).await?;
    target.to.addr = target.to.addr.wrapping_add(buffer.len() as u64);
    *sent += values;
    buffer.clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_round_trip() {
        let target = Target { qpn: 7, to: RemoteAddress { addr: 9, rkey: 8 }, values: 6 };
        let params = Params { address: 1, values: 2, targets: vec![target; 4] };
        let bytes = params.to_bytes();
        assert_eq!(Params::parse(&bytes), Ok(params));
        assert_eq!(Params::parse(&bytes[..bytes.len() - 1]), Err(CallStatus::BAD_PARAMS));
        assert_eq!(Params::parse(&[]), Err(CallStatus::BAD_PARAMS));
    }
}

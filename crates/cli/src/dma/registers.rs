//! The registers by which Xilinx's scripts count channels, as XDMA's control device shows them.

/// Bytes of the registers.
pub(super) const BYTES: usize = 64 << 10;
/// What the first register of a channel says: this is a channel of XDMA.
const CHANNEL_ID: u32 = 0x1fc0_0000;
/// A bit of the same register: the channel is a streaming one.
const STREAMS: u32 = 1 << 15;
/// Where the registers of `c2h` channels begin, and how far apart those of two channels are.
const C2H_REGISTERS: usize = 0x1000;
const CHANNEL_REGISTERS: usize = 0x100;

/// For each channel a register that says that it is one; all others are zero.
pub(super) fn registers(channels: u32, streaming: bool) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    let streams = if streaming { STREAMS } else { 0 };
    for number in 0..channels {
        for (start, kind) in [(0, 0), (C2H_REGISTERS, 1 << 16)] {
            let value = CHANNEL_ID | kind | streams | number << 8;
            let at = start + number as usize * CHANNEL_REGISTERS;
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}

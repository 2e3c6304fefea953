//! Memory for a card in a test.

use remora_nic::{Memory, MemoryFault};

/// Memory made of plain bytes.
pub(crate) struct Ram(pub(crate) Vec<u8>);

impl Ram {
    fn word(&mut self, addr: u64) -> Result<&mut [u8; 8], MemoryFault> {
        let bytes = self.0.get_mut(addr as usize..).and_then(|b| b.first_chunk_mut());
        bytes.ok_or(MemoryFault { addr })
    }
}

impl Memory for Ram {
    fn read(&mut self, addr: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
        let from = self.0.get(addr as usize..addr as usize + dst.len());
        dst.copy_from_slice(from.ok_or(MemoryFault { addr })?);
        Ok(())
    }

    fn write(&mut self, addr: u64, src: &[u8]) -> Result<(), MemoryFault> {
        let to = self.0.get_mut(addr as usize..addr as usize + src.len());
        to.ok_or(MemoryFault { addr })?.copy_from_slice(src);
        Ok(())
    }

    fn compare_swap(&mut self, addr: u64, compare: u64, swap: u64) -> Result<u64, MemoryFault> {
        let word = self.word(addr)?;
        let before = u64::from_ne_bytes(*word);
        if before == compare {
            *word = swap.to_ne_bytes();
        }
        Ok(before)
    }

    fn fetch_add(&mut self, addr: u64, add: u64) -> Result<u64, MemoryFault> {
        let word = self.word(addr)?;
        let before = u64::from_ne_bytes(*word);
        *word = before.wrapping_add(add).to_ne_bytes();
        Ok(before)
    }
}

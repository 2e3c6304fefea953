//! Room for payload that the card copies from one place in memory to another.

/// Payload in it begins half a page behind the beginning of a page. Most buffers begin at a page or
/// shortly behind it, and some processors copy slowly between places that are nearly the same
/// distance from the beginning of a page.
const SKEW: usize = 2048;
const PAGE: usize = 4096;

/// Room for bytes, which is used again and again.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    bytes: Vec<u8>,
}

impl Staging {
    /// Room for `headers` bytes and `len` bytes of payload behind them, with any content.
    pub(crate) fn room(&mut self, headers: usize, len: usize) -> &mut [u8] {
        let most = headers + len + 2 * PAGE;
        if self.bytes.len() < most {
            self.bytes.resize(most, 0);
        }
        let at = self.bytes.as_ptr() as usize + headers;
        let start = SKEW.wrapping_sub(at) % PAGE;
        &mut self.bytes[start..start + headers + len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_begins_half_a_page_behind_a_page() {
        let mut staging = Staging::default();
        for (headers, len) in [(28, 4096), (0, 1), (12, 0), (76, 65_536), (0, 0)] {
            let room = staging.room(headers, len);
            assert_eq!(room.len(), headers + len);
            assert_eq!((room.as_ptr() as usize + headers) % PAGE, SKEW, "{headers} {len}");
        }
    }
}

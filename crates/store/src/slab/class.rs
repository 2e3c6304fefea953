//! The sizes that blocks have.

use crate::layout::{BLOCK_MIN, PAGE};

/// Bytes that every block's place and size are multiples of.
pub(crate) const GRAIN: u64 = 16;
/// The largest block of a class, in bytes; longer items have pages of their own.
const LARGEST: u64 = 256 << 10;
/// The most pages of a span.
const SPAN_MAX: u64 = 16;

/// A size, and the spans of pages that are divided into blocks of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Class {
    /// Bytes of a block.
    pub(crate) size: u64,
    /// Pages of a span.
    pub(crate) pages: u32,
    /// Blocks of a span.
    pub(crate) blocks: u32,
}

/// All classes, smallest first. Each is about an eighth larger than the one before, and at most a
/// tenth of a span is in no block.
pub(crate) fn classes() -> Vec<Class> {
    let mut classes: Vec<Class> = Vec::new();
    let mut wanted = BLOCK_MIN;
    while wanted <= LARGEST {
        let span = |pages: &u64| {
            let blocks = pages * PAGE / wanted;
            blocks * wanted * 10 >= pages * PAGE * 9
        };
        let pages = (1..=SPAN_MAX).find(span).unwrap_or(SPAN_MAX);
        let blocks = pages * PAGE / wanted;
        let size = pages * PAGE / blocks / GRAIN * GRAIN;
        classes.push(Class { size, pages: pages as u32, blocks: blocks as u32 });
        wanted = (size + GRAIN).max((size + size / 8).next_multiple_of(GRAIN));
    }
    classes
}

/// The index of the class for so many bytes; `None` if they have pages of their own.
pub(crate) fn class_for(classes: &[Class], len: u64) -> Option<usize> {
    let index = classes.partition_point(|class| class.size < len);
    (index < classes.len()).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_lost() {
        let classes = classes();
        assert!(classes.len() < 255, "a class's number is a byte");
        for (index, class) in classes.iter().enumerate() {
            let span = u64::from(class.pages) * PAGE;
            assert!(u64::from(class.blocks) * class.size * 10 >= span * 9, "{class:?}");
            assert!(class.size.is_multiple_of(GRAIN));
            assert_eq!(class_for(&classes, class.size), Some(index));
            let last = index == 0 || class.size <= classes[index - 1].size * 5 / 4 + GRAIN;
            assert!(last, "{class:?} after {:?}", classes[index.max(1) - 1]);
        }
        // An item with a key of 16 bytes and a value of 64.
        assert_eq!(classes[class_for(&classes, 112).unwrap()].size, 112);
        assert_eq!(class_for(&classes, 1 << 20), None);
    }
}

//! A ring of elements in memory, and the card's indices into it.

use super::element::ELEMENT_LEN;
use crate::memory::Memory;

/// A work queue's ring, as its owner laid it out in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RingInit {
    /// Bus address of the first slot. The driver guarantees that the whole ring can be reached.
    pub addr: u64,
    /// Number of slots: a power of two, at most 2^20. Zero: there is no such queue.
    pub depth: u32,
    /// Bytes from slot to slot: a multiple of 64, at most 1088.
    pub stride: u32,
}

impl RingInit {
    /// The stride that elements of this many entries and inline bytes need.
    pub const fn stride_for(sges: usize, inline: usize) -> u32 {
        super::element::stride_for(sges, inline) as u32
    }

    /// Inline bytes that fit its elements.
    pub const fn inline_room(&self) -> usize {
        super::element::inline_room(self.stride as usize)
    }

    /// Bytes of the whole ring.
    pub const fn len(&self) -> usize {
        self.depth as usize * self.stride as usize
    }

    /// Is there no ring?
    pub const fn is_empty(&self) -> bool {
        self.depth == 0
    }

    /// Can a card use it, or is it empty?
    pub fn is_valid(&self) -> bool {
        self.depth == 0
            || self.depth.is_power_of_two()
                && self.depth <= 1 << 20
                && self.stride as usize >= ELEMENT_LEN
                && (self.stride as usize).is_multiple_of(ELEMENT_LEN)
                && self.stride as usize <= MAX_STRIDE
    }
}

/// Room for [`super::MAX_INLINE`] bytes behind an element's fixed fields.
pub(crate) const MAX_STRIDE: usize = super::element::stride_for(1, super::element::MAX_INLINE);

/// The longest stride of elements with a few entries or inline bytes.
const SHORT_STRIDE: usize = 128;

/// Lends zeroed room for one element of a ring with this stride. (The usual element is short, and
/// zeroing room for the longest each time would cost more than everything else.)
#[inline(always)]
pub fn with_room<R>(stride: usize, act: impl FnOnce(&mut [u8]) -> R) -> R {
    if stride <= SHORT_STRIDE {
        act(&mut [0; SHORT_STRIDE][..stride])
    } else {
        act(&mut [0; MAX_STRIDE][..stride])
    }
}

/// The card's view of a ring: indices count up without end and are masked on use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ring {
    addr: u64,
    /// log2 of the slots; [`Ring::NONE`] if there is no ring.
    depth_log2: u8,
    /// Stride in units of [`ELEMENT_LEN`].
    stride_units: u8,
    /// One past the last element that the owner has posted.
    pub(crate) posted: u32,
    /// One past the last element that the card has fetched.
    pub(crate) fetched: u32,
    /// One past the last element whose slot the owner may use again.
    pub(crate) retired: u32,
}

impl Ring {
    /// 2^32 slots would be too many for 32 bits: none are left.
    const NONE: u8 = 32;

    pub(crate) fn depth(&self) -> u32 {
        (1u64 << self.depth_log2) as u32
    }

    pub(crate) fn new(init: RingInit) -> Ring {
        let depth_log2 = if init.is_empty() { Ring::NONE } else { init.depth.ilog2() as u8 };
        let stride_units = (init.stride as usize / ELEMENT_LEN) as u8;
        Ring { addr: init.addr, depth_log2, stride_units, ..Ring::default() }
    }

    /// The bus address of the slot of element `index`.
    pub(crate) fn slot(&self, index: u32) -> u64 {
        let slot = index & self.depth().wrapping_sub(1);
        self.addr + u64::from(slot) * self.stride() as u64
    }

    /// Announces that the next element will be fetched.
    #[inline]
    pub(crate) fn prefetch(&self, mem: &mut dyn Memory) {
        mem.prefetch(self.slot(self.fetched), self.stride());
    }

    /// The bytes of the whole ring.
    pub(crate) fn len(&self) -> usize {
        self.depth() as usize * self.stride()
    }

    pub(crate) fn stride(&self) -> usize {
        usize::from(self.stride_units) * ELEMENT_LEN
    }

    /// The same elements in another ring, to which their bytes have been copied.
    pub(crate) fn moved(&self, init: RingInit) -> Ring {
        let Ring { posted, fetched, retired, .. } = *self;
        Ring { posted, fetched, retired, ..Ring::new(init) }
    }

    /// Checks what holds for every ring, for any doorbell and any ENABLE: the elements to fetch are
    /// not more than the slots, and neither are those under way. (A managed queue may be enabled
    /// beyond elements that are not done yet, so that both together may be more.)
    #[inline]
    fn debug_assert_in_bounds(&self) {
        debug_assert!(self.waiting() <= self.depth(), "{self:?}");
        debug_assert!(self.fetched.wrapping_sub(self.retired) <= self.depth(), "{self:?}");
    }

    /// How many elements are posted and not fetched.
    pub(crate) fn waiting(&self) -> u32 {
        self.posted.wrapping_sub(self.fetched)
    }

    /// How many elements are posted and not retired.
    pub(crate) fn in_use(&self) -> u32 {
        self.posted.wrapping_sub(self.retired)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.in_use() >= self.depth()
    }

    /// How many waiting elements, at most `most`, lie in a row before the ring's memory wraps.
    pub(crate) fn contiguous(&self, most: u32) -> u32 {
        let depth = self.depth();
        if depth == 0 {
            return 0;
        }
        self.debug_assert_in_bounds();
        let to_wrap = depth - (self.fetched & (depth - 1));
        self.waiting().min(most).min(to_wrap)
    }

    /// A doorbell: the owner has posted elements up to `index`. Returns whether the ring can hold
    /// so many; otherwise nothing changes.
    pub(crate) fn doorbell(&mut self, index: u32) -> bool {
        let depth = self.depth();
        let fits =
            index.wrapping_sub(self.retired) <= depth && index.wrapping_sub(self.posted) <= depth;
        if fits {
            self.posted = index;
            self.debug_assert_in_bounds();
        }
        fits
    }

    /// Lets a managed queue run its elements up to `index`, also those that it has run before.
    /// Returns whether the ring holds so many; otherwise nothing changes. An index that is behind
    /// changes nothing, either.
    pub(crate) fn enable(&mut self, index: u32) -> bool {
        if index.wrapping_sub(self.posted) as i32 <= 0 {
            return true;
        }
        let fits = index.wrapping_sub(self.fetched) <= self.depth();
        if fits {
            self.posted = index;
            self.debug_assert_in_bounds();
        }
        fits
    }

    /// Are as many elements under way as the ring holds? (Recycled ones may be fetched again before
    /// they are done.)
    pub(crate) fn is_under_way(&self) -> bool {
        self.fetched.wrapping_sub(self.retired) >= self.depth()
    }

    /// Forgets all elements (a queue pair goes to RESET).
    pub(crate) fn reset(&mut self) {
        (self.posted, self.fetched, self.retired) = (0, 0, 0);
    }
}

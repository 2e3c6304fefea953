//! Traversal of linked structures, with all parameters of StRoM's Table 2 (StRoM §6.2).
//!
//! Positions count units of 4 bytes; keys and pointers have 8 bytes. An element matches if `key
//! PREDICATE element's key` holds for one of the keys that the mask names, tested from the lowest
//! position up. In a structure of several levels (trees, skip lists), the first `descents` matches
//! each lead to an element of the next level, and the match after them leads to the value. A null
//! pointer ends the search.

use super::reader::{Reader, require, word};
use crate::kernel::{CallStatus, Context};

/// The longest element in bytes (StRoM §6.2).
pub const ELEMENT_MAX: usize = 64;
/// Bytes of [`Params`].
pub const PARAMS_LEN: usize = 40;

/// The comparison of the requested key with an element's key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Predicate {
    /// The keys are equal.
    Equal = 0,
    /// The requested key is less.
    LessThan = 1,
    /// The requested key is greater.
    GreaterThan = 2,
    /// The keys differ.
    NotEqual = 3,
}

impl Predicate {
    fn parse(code: u8) -> Result<Predicate, CallStatus> {
        Ok(match code {
            0 => Predicate::Equal,
            1 => Predicate::LessThan,
            2 => Predicate::GreaterThan,
            3 => Predicate::NotEqual,
            _ => return Err(CallStatus::BAD_PARAMS),
        })
    }

    /// Whether the comparison holds.
    #[inline]
    pub fn holds(self, key: u64, elements: u64) -> bool {
        match self {
            Predicate::Equal => key == elements,
            Predicate::LessThan => key < elements,
            Predicate::GreaterThan => key > elements,
            Predicate::NotEqual => key != elements,
        }
    }
}

/// The parameters of StRoM's Table 2, and those that the paper leaves open: the element's length,
/// levels, and a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// `remoteAddress`: the address of the first element, in granted memory.
    pub address: u64,
    /// `valueSize`: the value's length in bytes.
    pub value_len: u32,
    /// `key`: the key to look for.
    pub key: u64,
    /// `keyMask`: the positions of keys in an element; bit i stands for position i.
    pub key_mask: u16,
    /// `predicateOpCode`: how keys are compared.
    pub predicate: Predicate,
    /// `valuePtrPosition`: the position of the value's pointer.
    pub value_position: u8,
    /// `isRelativePosition`: the position of the value's pointer counts from the matching key.
    pub relative: bool,
    /// `nextElementPtrPos`; `None` if `nextElementPtrValid` is not set.
    pub next_position: Option<u8>,
    /// Bytes of an element, at most [`ELEMENT_MAX`].
    pub element_len: u8,
    /// Levels above the one that holds values: that many matches lead to further elements.
    pub descents: u8,
    /// How keys are compared in the levels above.
    pub descent_predicate: Predicate,
    /// In the levels above, the next-element pointer leads a level down, like the last child of a
    /// tree's node.
    pub next_descends: bool,
    /// The most elements that are read; 0 means 65,536.
    pub elements_max: u32,
}

impl Params {
    /// Parameters for a list, or a chain of hash-table entries, with the elements of StRoM's
    /// Figure 6: key, next pointer, value pointer.
    pub fn list(address: u64, key: u64, value_len: u32) -> Params {
        Params {
            address,
            value_len,
            key,
            key_mask: 1,
            predicate: Predicate::Equal,
            value_position: 4,
            relative: false,
            next_position: Some(2),
            element_len: 24,
            descents: 0,
            descent_predicate: Predicate::Equal,
            next_descends: false,
            elements_max: 0,
        }
    }

    /// Reads parameters.
    ///
    /// # Errors
    /// [`CallStatus::BAD_PARAMS`] for unknown predicates or flags, and for positions outside of
    /// the element.
    pub fn parse(bytes: &[u8]) -> Result<Params, CallStatus> {
        let mut reader = Reader(bytes);
        let (address, key) = (reader.u64()?, reader.u64()?);
        let (value_len, elements_max) = (reader.u32()?, reader.u32()?);
        let (key_mask, predicate) = (reader.u16()?, Predicate::parse(reader.u8()?)?);
        let (value_position, next, element_len) = (reader.u8()?, reader.u8()?, reader.u8()?);
        let (descents, descent_predicate) = (reader.u8()?, Predicate::parse(reader.u8()?)?);
        let flags = reader.u8()?;
        require(flags < 8)?;
        for _ in 0..7 {
            require(reader.u8()? == 0)?;
        }
        reader.end()?;
        let (relative, valid, next_descends) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
        let params = Params {
            address,
            value_len,
            key,
            key_mask,
            predicate,
            value_position,
            relative,
            next_position: valid.then_some(next),
            element_len,
            descents,
            descent_predicate,
            next_descends,
            elements_max,
        };
        let len = usize::from(element_len);
        let within = |position: usize| position * 4 + 8 <= len;
        require(len <= ELEMENT_MAX && key_mask != 0)?;
        let last_key = key_mask.ilog2() as usize;
        let base = if relative { last_key } else { 0 };
        require(within(last_key) && within(base + usize::from(value_position)))?;
        require(params.next_position.is_none_or(|at| within(at.into())))?;
        Ok(params)
    }

    /// The parameters' bytes.
    pub fn to_bytes(&self) -> [u8; PARAMS_LEN] {
        let mut out = [0; PARAMS_LEN];
        out[..8].copy_from_slice(&self.address.to_le_bytes());
        out[8..16].copy_from_slice(&self.key.to_le_bytes());
        out[16..20].copy_from_slice(&self.value_len.to_le_bytes());
        out[20..24].copy_from_slice(&self.elements_max.to_le_bytes());
        out[24..26].copy_from_slice(&self.key_mask.to_le_bytes());
        out[26] = self.predicate as u8;
        out[27] = self.value_position;
        out[28] = self.next_position.unwrap_or(0);
        out[29] = self.element_len;
        out[30] = self.descents;
        out[31] = self.descent_predicate as u8;
        let next = u8::from(self.next_position.is_some()) << 1;
        out[32] = u8::from(self.relative) | next | u8::from(self.next_descends) << 2;
        out
    }

    /// Where an element leads.
    #[inline]
    fn judge(&self, element: &[u8], predicate: Predicate) -> Lead {
        let mut mask = self.key_mask;
        while mask != 0 {
            let position = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            if predicate.holds(self.key, word(element, position * 4)) {
                let base = if self.relative { position } else { 0 };
                return Lead::Match(word(element, (base + usize::from(self.value_position)) * 4));
            }
        }
        Lead::Next(self.next_position.map_or(0, |at| word(element, usize::from(at) * 4)))
    }
}

/// Where an element leads.
enum Lead {
    /// A key matches: the pointer beside it.
    Match(u64),
    /// No key matches: the pointer to the next element.
    Next(u64),
}

/// The kernel, called by RPC: the result is the value.
///
/// # Errors
/// [`CallStatus::NOT_FOUND`] if the structure ends without a match, [`CallStatus::BUDGET`] if the
/// limit of elements is reached.
pub async fn traversal(context: Context) -> Result<(), CallStatus> {
    let params = context.params(Params::parse).await?;
    let elements_max = if params.elements_max == 0 { 1 << 16 } else { params.elements_max };
    let mut descents = params.descents;
    let mut at = params.address;
    let mut element = [0; ELEMENT_MAX];
    let element = &mut element[..usize::from(params.element_len)];
    for _ in 0..elements_max {
        context.read(at, element).await?;
        let upper = descents > 0;
        let predicate = if upper { params.descent_predicate } else { params.predicate };
        at = match params.judge(element, predicate) {
            Lead::Match(0) | Lead::Next(0) => return Err(CallStatus::NOT_FOUND),
            Lead::Match(value) if !upper => {
                return context.send_memory(value, params.value_len).await;
            }
            Lead::Match(lower) => {
                descents -= 1;
                lower
            }
            Lead::Next(next) => {
                descents -= u8::from(upper && params.next_descends);
                next
            }
        };
    }
    Err(CallStatus::BUDGET)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parameters_round_trip() {
        let params = Params {
            predicate: Predicate::GreaterThan,
            relative: true,
            element_len: 64,
            descents: 3,
            next_descends: true,
            elements_max: 9,
            ..Params::list(5, 6, 7)
        };
        assert_eq!(Params::parse(&params.to_bytes()), Ok(params));
    }

    #[test]
    fn positions_must_lie_in_the_element() {
        let good = Params::list(1, 2, 3);
        assert!(Params::parse(&good.to_bytes()).is_ok());
        let bad = [
            Params { key_mask: 0, ..good },
            Params { key_mask: 1 << 5, ..good },
            Params { value_position: 5, ..good },
            Params { value_position: u8::MAX, relative: true, ..good },
            Params { next_position: Some(5), ..good },
            Params { element_len: 65, ..good },
        ];
        for params in bad {
            assert_eq!(
                Params::parse(&params.to_bytes()),
                Err(CallStatus::BAD_PARAMS),
                "{params:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged(bytes in prop::collection::vec(any::<u8>(), 0..48)) {
            if let Ok(params) = Params::parse(&bytes) {
                params.judge(&[0xFF; ELEMENT_MAX][..params.element_len.into()], params.predicate);
                prop_assert_eq!(&params.to_bytes()[..28], &bytes[..28]);
            }
        }
    }
}

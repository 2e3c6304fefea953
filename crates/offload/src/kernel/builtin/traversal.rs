//! Traversal of linked structures, with all parameters of StRoM's Table 2.
//!
//! Positions are in units of 4 bytes, keys and pointers have 8. An element matches if
//! `key PREDICATE element's key` holds for a key that the mask names, the lowest first. A match
//! leads to the value, or, in a structure of several levels (trees, skip lists), `descents` times
//! to an element of the next level first. A null pointer ends the search.

use super::reader::{Reader, require, word};
use crate::kernel::{CallStatus, Context};

/// Bytes of the longest element (§6.2).
pub const ELEMENT_MAX: usize = 64;
/// Bytes of [`Params`].
pub const PARAMS_LEN: usize = 40;

/// How the key asked for and an element's key are compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Predicate {
    /// They are equal.
    Equal = 0,
    /// The key asked for is less.
    LessThan = 1,
    /// The key asked for is greater.
    GreaterThan = 2,
    /// They differ.
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

    /// Does it hold?
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

/// Table 2, and what the paper leaves open: the element's length, levels, and a bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// `remoteAddress`: the initial element.
    pub address: u64,
    /// `valueSize`: bytes of the value.
    pub value_len: u32,
    /// `key`: the key to look for.
    pub key: u64,
    /// `keyMask`: where in an element keys are: bit i for position i.
    pub key_mask: u16,
    /// `predicateOpCode`.
    pub predicate: Predicate,
    /// `valuePtrPosition`.
    pub value_position: u8,
    /// `isRelativePosition`: the value pointer's position counts from the key that matched.
    pub relative: bool,
    /// `nextElementPtrPos`, if `nextElementPtrValid`.
    pub next_position: Option<u8>,
    /// Bytes of an element, at most 64.
    pub element_len: u8,
    /// Levels above the one that holds values: so many matches lead to further elements.
    pub descents: u8,
    /// How keys are compared in those upper levels.
    pub descent_predicate: Predicate,
    /// In upper levels, the next-element pointer leads a level down, too: the last child of a
    /// tree's node.
    pub next_descends: bool,
    /// Elements that are looked at, at most; zero: 65,536.
    pub elements_max: u32,
}

impl Params {
    /// A list, or a chain of hash-table entries, of elements of the paper's Figure 6: key, next
    /// pointer, value pointer.
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
    /// [`CallStatus::BAD_PARAMS`]: unknown predicates or flags, or positions outside the element.
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

    /// What an element leads to.
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

/// Where an element leads to.
enum Lead {
    /// A key matched: its pointer.
    Match(u64),
    /// None did: the next element.
    Next(u64),
}

/// The kernel.
///
/// # Errors
/// [`CallStatus::NOT_FOUND`] where the structure ends, [`CallStatus::BUDGET`] where it does not.
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

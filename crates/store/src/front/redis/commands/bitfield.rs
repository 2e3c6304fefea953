//! `BITFIELD`: numbers of 1 to 64 bits, anywhere in a string.

use crate::front::keyspace::Edit;
use crate::front::redis::command::{Call, Done, NOT_INTEGER, SYNTAX, TOO_LONG, Wrong};
use crate::front::redis::commands::bits::{OFFSET, place};
use crate::front::redis::commands::strings::remade;
use crate::front::redis::request::decimal;
use crate::item::VALUE_MAX;

/// Where a number stands.
#[derive(Clone, Copy, Debug)]
struct Field {
    /// Its first bit, which is its highest.
    offset: usize,
    /// 1 to 64; without a sign, to 63.
    bits: u32,
    is_signed: bool,
}

/// The bytes that a number may lie in.
const SPAN: usize = 9;

impl Field {
    /// The bits of the bytes that the number may lie in, and how far it is from their end; zeros
    /// follow the value.
    fn around(self, value: &[u8]) -> (u128, u32) {
        let bytes = self.offset / 8..self.offset / 8 + SPAN;
        let word = bytes.fold(0, |word, at| word << 8 | u128::from(*value.get(at).unwrap_or(&0)));
        (word, SPAN as u32 * 8 - (self.offset % 8) as u32 - self.bits)
    }

    fn read(self, value: &[u8]) -> i64 {
        let (word, shift) = self.around(value);
        self.narrow((word >> shift) as i64)
    }

    /// The number that the lowest bits of another one are.
    fn narrow(self, number: i64) -> i64 {
        let unused = 64 - self.bits;
        let raised = number << unused;
        if self.is_signed { raised >> unused } else { (raised as u64 >> unused) as i64 }
    }

    /// Writes a number to a value that is long enough.
    fn write(self, value: &mut [u8], number: i64) {
        let (word, shift) = self.around(value);
        let mask = ((1u128 << self.bits) - 1) << shift;
        let word = word & !mask | (number as u128) << shift & mask;
        let bytes = word << (128 - SPAN * 8);
        let into = value[self.offset / 8..].iter_mut();
        into.zip(bytes.to_be_bytes()).take(SPAN).for_each(|(byte, new)| *byte = new);
    }

    /// The least and the greatest number that it can hold.
    fn limits(self) -> (i128, i128) {
        let power = 1i128 << (self.bits - u32::from(self.is_signed));
        (if self.is_signed { -power } else { 0 }, power - 1)
    }
}

/// What becomes of a number that its field cannot hold.
#[derive(Clone, Copy, Debug)]
enum Overflow {
    /// Its lowest bits are kept.
    Wrap,
    /// It becomes the least or the greatest.
    Saturate,
    /// The field stays as it is.
    Fail,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Get,
    Set(i64, Overflow),
    Add(i64, Overflow),
}

impl Step {
    /// What the field is to hold, and what becomes of it where it cannot. None: it is only read.
    fn wanted(self, field: Field, old: i64) -> Option<(i128, Overflow)> {
        match self {
            Step::Get => None,
            // As in Redis, a negative one is a great one where there is no sign.
            Step::Set(new, overflow) if !field.is_signed => Some(((new as u64).into(), overflow)),
            Step::Set(new, overflow) => Some((new.into(), overflow)),
            Step::Add(more, overflow) => Some((i128::from(old) + i128::from(more), overflow)),
        }
    }

    /// Carries it out on a value that is long enough for what it changes. The answer is what the
    /// client gets; None: nothing.
    fn carry_out(self, field: Field, value: &mut [u8]) -> Option<i64> {
        let old = field.read(value);
        let Some((wanted, overflow)) = self.wanted(field, old) else { return Some(old) };
        let (least, most) = field.limits();
        let new = match overflow {
            _ if (least..=most).contains(&wanted) => wanted as i64,
            Overflow::Wrap => field.narrow(wanted as i64),
            Overflow::Saturate => wanted.clamp(least, most) as i64,
            Overflow::Fail => return None,
        };
        field.write(value, new);
        Some(if matches!(self, Step::Set(..)) { old } else { new })
    }
}

/// The steps that a command's arguments name, each with its field.
fn steps(call: &Call<'_>) -> Result<Vec<(Step, Field)>, Wrong> {
    let (mut steps, mut overflow, mut index) = (Vec::new(), Overflow::Wrap, 2);
    while index < call.len() {
        let left = call.len() - index - 1;
        if call.is(index, "overflow") && left >= 1 {
            overflow = match () {
                () if call.is(index + 1, "wrap") => Overflow::Wrap,
                () if call.is(index + 1, "sat") => Overflow::Saturate,
                () if call.is(index + 1, "fail") => Overflow::Fail,
                () => return Err(Wrong::Is("ERR Invalid OVERFLOW type specified")),
            };
            index += 2;
            continue;
        }
        let changes = call.is(index, "set") || call.is(index, "incrby");
        if left < 2 + usize::from(changes) || !changes && !call.is(index, "get") {
            return Err(SYNTAX);
        }
        let field = field(call, index + 1)?;
        let number = |call: &Call<'_>| decimal(call.at(index + 3)).ok_or(NOT_INTEGER);
        let step = match () {
            () if !changes => Step::Get,
            () if call.is(index, "set") => Step::Set(number(call)?, overflow),
            () => Step::Add(number(call)?, overflow),
        };
        steps.push((step, field));
        index += 3 + usize::from(changes);
    }
    Ok(steps)
}

/// The field of a type and an offset, which stand at `index`.
fn field(call: &Call<'_>, index: usize) -> Result<Field, Wrong> {
    let wrong = Wrong::Is(
        "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but \
         i64 is.",
    );
    let (is_signed, digits) = match call.at(index) {
        [b'i', digits @ ..] => (true, digits),
        [b'u', digits @ ..] => (false, digits),
        _ => return Err(wrong),
    };
    let bits = decimal(digits).filter(|bits| (1..=63 + i64::from(is_signed)).contains(bits));
    let bits = bits.ok_or(wrong)?;
    let offset = match call.at(index + 1) {
        [b'#', digits @ ..] => decimal(digits).and_then(|number| number.checked_mul(bits)),
        digits => decimal(digits),
    };
    let (offset, bits) = (place(call, offset)?, u32::try_from(bits).map_err(|_| OFFSET)?);
    Ok(Field { offset, bits, is_signed })
}

/// `BITFIELD key [GET type offset | [OVERFLOW WRAP | SAT | FAIL] SET type offset value |
/// INCRBY type offset increment] …`.
pub(crate) fn bitfield(call: &mut Call<'_>) -> Done {
    let steps = steps(call)?;
    let changes = steps.iter().filter(|(step, _)| !matches!(step, Step::Get));
    // What is changed is made long enough, whether a step fails or not.
    let end = |field: &Field| (field.offset + field.bits as usize).div_ceil(8);
    match changes.map(|(_, field)| end(field)).max() {
        None => read(call, &steps),
        Some(len) if len > VALUE_MAX => Err(TOO_LONG),
        Some(len) => change(call, &steps, len),
    }
}

/// `BITFIELD_RO key [GET type offset] …`.
pub(crate) fn bitfield_ro(call: &mut Call<'_>) -> Done {
    let steps = steps(call)?;
    if steps.iter().any(|(step, _)| !matches!(step, Step::Get)) {
        return Err(Wrong::Is("ERR BITFIELD_RO only supports the GET subcommand"));
    }
    read(call, &steps)
}

fn read(call: &mut Call<'_>, steps: &[(Step, Field)]) -> Done {
    let mut value = Vec::new();
    call.value(call.at(1), &mut value)?;
    let answers: Vec<_> = steps.iter().map(|(_, field)| Some(field.read(&value))).collect();
    answer(call, &answers)
}

fn change(call: &mut Call<'_>, steps: &[(Step, Field)], len: usize) -> Done {
    let mut answers = Vec::with_capacity(steps.len());
    call.change(call.at(1), |seen, scratch| {
        let before = seen.map_or(&[][..], |seen| seen.value());
        scratch.extend_from_slice(before);
        scratch.resize(before.len().max(len), 0);
        answers.clear();
        answers.extend(steps.iter().map(|(step, field)| step.carry_out(*field, scratch)));
        if seen.is_some() && *scratch == before { Edit::Keep } else { remade(seen) }
    })?;
    answer(call, &answers)
}

fn answer(call: &mut Call<'_>, answers: &[Option<i64>]) -> Done {
    call.reply.array(answers.len());
    for answer in answers {
        match answer {
            Some(number) => call.reply.integer(*number),
            None => call.reply.null(),
        }
    }
    Ok(())
}

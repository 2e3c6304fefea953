//! Memory for the bytes of long calls: each call has a limit, and all together have one, too.
//!
//! A call may have at most half of what the others have left. So a client that sends many long
//! calls at once finds less and less room, and there is always some for the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use remora::kernel::{CallStatus, Context};

use super::call::{Call, HEAD_LEN, KEY_MAX, VALUE_MAX};

/// The most bytes of a call.
pub const CALL_MAX: u64 = (HEAD_LEN + KEY_MAX + 2 * VALUE_MAX) as u64;
/// The least that all calls together may have: one of the longest has half of it.
pub const TOTAL_MIN: u64 = 2 * CALL_MAX;

/// A call that comes more slowly than so many bytes a second, once [`PATIENCE`] is over, ends: its
/// bytes take room that others want.
const SLOWEST: u64 = 1_000_000;
/// How long a call may take to come, whatever its length.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the bytes of all calls together may take.
#[derive(Debug)]
pub struct PayloadRoom {
    total: u64,
    held: AtomicU64,
    refused: AtomicU64,
}

impl PayloadRoom {
    /// Room for so many bytes, at least [`TOTAL_MIN`].
    pub fn new(total: u64) -> PayloadRoom {
        PayloadRoom { total: total.max(TOTAL_MIN), held: 0.into(), refused: 0.into() }
    }

    /// Bytes that calls hold now.
    pub fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Calls that were refused since there was no room.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }
}

/// A part of the room, until it is dropped.
#[derive(Debug)]
struct HeldRoom {
    room: Arc<PayloadRoom>,
    bytes: u64,
}

impl HeldRoom {
    /// Holds `bytes` in all.
    fn grow(&mut self, bytes: u64) -> Result<(), CallStatus> {
        let (total, own) = (self.room.total, self.bytes);
        let more = |held: u64| {
            let left = total - (held - own);
            (bytes <= left / 2).then_some(held - own + bytes)
        };
        if self.room.held.fetch_update(Relaxed, Relaxed, more).is_err() {
            self.room.refused.fetch_add(1, Relaxed);
            return Err(CallStatus::MEMORY);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for HeldRoom {
    fn drop(&mut self) {
        self.room.held.fetch_sub(self.bytes, Relaxed);
    }
}

/// The bytes of a call that comes as payload.
#[derive(Debug)]
pub(super) struct Gathered {
    bytes: Vec<u8>,
    /// How many there will be, once the head has come.
    whole: Option<usize>,
    held: HeldRoom,
}

impl Gathered {
    fn new(room: &Arc<PayloadRoom>) -> Gathered {
        let held = HeldRoom { room: room.clone(), bytes: 0 };
        Gathered { bytes: Vec::new(), whole: None, held }
    }

    /// Takes the next piece. What is longer than its head says is refused before it takes room.
    fn take(&mut self, piece: &[u8]) -> Result<(), CallStatus> {
        let len = self.bytes.len() + piece.len();
        if self.whole.is_some_and(|whole| len > whole) {
            return Err(CallStatus::BAD_PARAMS);
        }
        if len > self.bytes.capacity() {
            // Twice as much each time, but no more than will come.
            let more = (2 * self.bytes.capacity()).max(len);
            let room = self.whole.map_or(more, |whole| more.min(whole));
            self.held.grow(room as u64)?;
            self.bytes.reserve_exact(room - self.bytes.len());
        }
        self.bytes.extend_from_slice(piece);
        if self.whole.is_none() && len >= HEAD_LEN {
            let whole = Call::whole(&self.bytes).map_err(|_| CallStatus::BAD_PARAMS)?;
            if len > whole {
                return Err(CallStatus::BAD_PARAMS);
            }
            self.whole = Some(whole);
        }
        Ok(())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for Gathered {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Takes the payload of a call, as it comes. `waited` says for how long it has come.
///
/// # Errors
/// It is no call, there is no room for it, or it comes too slowly.
pub(super) async fn gather(
    context: &Context,
    room: &Arc<PayloadRoom>,
    waited: impl Fn() -> Duration,
) -> Result<Gathered, CallStatus> {
    let mut gathered = Gathered::new(room);
    while let Some(taken) = context.payload(|piece, _| gathered.take(piece)).await? {
        taken?;
        if is_late(waited(), gathered.bytes.len()) {
            return Err(CallStatus::LATE);
        }
    }
    Ok(gathered)
}

/// Whether a call of which so many bytes have come is too slow.
fn is_late(waited: Duration, bytes: usize) -> bool {
    waited > PATIENCE + Duration::from_micros(bytes as u64 * 1_000_000 / SLOWEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(value_len: usize) -> Vec<u8> {
        let value = vec![7; value_len];
        let mut bytes = Vec::new();
        Call { key: b"key", value: &value, ..Call::default() }.write(&mut bytes).unwrap();
        bytes
    }

    fn send(room: &Arc<PayloadRoom>, bytes: &[u8]) -> Result<Gathered, CallStatus> {
        let mut gathered = Gathered::new(room);
        bytes.chunks(4096).try_for_each(|piece| gathered.take(piece))?;
        assert_eq!(gathered.bytes(), bytes);
        Ok(gathered)
    }

    #[test]
    fn all_calls_together_have_a_limit_and_small_ones_find_room() {
        let (room, long) = (Arc::new(PayloadRoom::new(0)), call(VALUE_MAX));
        let mut held: Vec<Gathered> = Vec::new();
        while let Ok(gathered) = send(&room, &long) {
            held.push(gathered);
            assert!(room.held() <= TOTAL_MIN && held.len() < 10);
        }
        assert!((2..4).contains(&held.len()), "{}", held.len());
        assert_eq!((room.held(), room.refused()), (held.len() as u64 * long.len() as u64, 1));
        let small = send(&room, &call(100_000)).unwrap();
        assert_eq!(room.held(), (held.len() * long.len() + small.bytes().len()) as u64);
        drop((held, small));
        assert_eq!(room.held(), 0);
        send(&room, &long).unwrap();
    }

    #[test]
    fn what_comes_too_slowly_is_late() {
        let second = Duration::from_secs(1);
        assert!(!is_late(10 * second, 1000) && is_late(11 * second, 1000));
        assert!(!is_late(42 * second, 32 << 20) && is_late(45 * second, 32 << 20));
    }

    #[test]
    fn room_is_taken_as_bytes_come_and_not_beyond_what_the_head_says() {
        let room = Arc::new(PayloadRoom::new(0));
        let mut gathered = Gathered::new(&room);
        let long = call(VALUE_MAX);
        gathered.take(&long[..1000]).unwrap();
        assert_eq!(room.held(), 1000, "a client that only announces much gets little");
        let mut lies = call(10);
        lies.push(0);
        assert_eq!(Gathered::new(&room).take(&lies), Err(CallStatus::BAD_PARAMS));
        let mut late = Gathered::new(&room);
        late.take(&lies[..40]).unwrap();
        late.take(&lies[40..60]).unwrap();
        assert_eq!(late.take(&lies[60..]), Err(CallStatus::BAD_PARAMS));
        drop((gathered, late));
        assert_eq!(room.held(), 0);
    }
}

//! Has everything arrived? The last step of every test.
//!
//! The client says that it is done; the server leaves its loop and answers. Then WRITE and SEND
//! carry one more message of fresh bytes into every slot, which the server compares. READ's result
//! is compared by the client, and for atomics the server adds up the words.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use remora::MemoryRegion;
use remora::memory::Buffer;
use remora::nic::queue::SendFlags;

use super::PATIENCE;
use super::plan::{Plan, Verb};
use super::session::{Session, ensure_success};

/// What the outboxes hold: of the client, of the server, and of the client at last.
pub(super) const CLIENT: u8 = 1;
pub(super) const SERVER: u8 = 2;
const LAST: u8 = 3;

/// Fills the outbox.
pub(super) fn fill(region: &MemoryRegion, plan: &Plan, seed: u8) -> Result<()> {
    if plan.verb == Verb::Atomic {
        return Ok(());
    }
    let bytes = pattern(plan, seed);
    for i in 0..plan.slots() as usize {
        region.write_at(plan.outbox(i) as usize, &bytes)?;
    }
    Ok(())
}

/// The client's part, after `messages` messages.
pub(super) fn client(session: &mut Session, messages: u64) -> Result<()> {
    session.control.send(&messages.to_be_bytes(), patience())?;
    session.control.receive(patience())?;
    match session.plan.verb {
        Verb::Write | Verb::Send => send_last(session)?,
        Verb::Read => {
            compare(session.buffer(), &session.plan, 1, SERVER)?;
        }
        Verb::Atomic => {}
    }
    session.control.send(&messages.to_be_bytes(), patience())?;
    let verdict = session.control.receive(patience())?;
    if !verdict.is_empty() {
        bail!("the server objects: {}", String::from_utf8_lossy(&verdict));
    }
    Ok(())
}

/// The server's part, after it received `received` messages (SEND only).
pub(super) fn server(session: &mut Session, received: u64) -> Result<()> {
    session.control.send(&[], patience())?;
    let messages = session.control.receive(patience())?;
    let messages = messages.first_chunk().map_or(0, |b| u64::from_be_bytes(*b));
    let checked = check(session, messages, received);
    // One control message holds at least so many bytes.
    let mut verdict = checked.as_ref().map_or_else(|e| format!("{e:#}"), |()| String::new());
    while verdict.len() > super::control::LEAST_ROOM {
        verdict.pop();
    }
    session.control.send(verdict.as_bytes(), patience())?;
    checked
}

fn check(session: &Session, messages: u64, received: u64) -> Result<()> {
    let plan = &session.plan;
    match plan.verb {
        Verb::Write => compare(session.buffer(), plan, plan.slots(), LAST),
        Verb::Send => {
            compare(session.buffer(), plan, plan.slots(), LAST)?;
            ensure!(received == messages, "{received} of {messages} messages were received");
            Ok(())
        }
        Verb::Read => Ok(()),
        Verb::Atomic => {
            let words = (0..plan.slots() as usize)
                .map(|i| session.buffer().load_u64(plan.inbox(i) as usize));
            let sum: u64 = words.sum::<Result<u64, _>>()?;
            ensure!(sum == messages, "{messages} additions were carried out as {sum}");
            Ok(())
        }
    }
}

/// One more message into every slot, with bytes not sent before.
fn send_last(session: &Session) -> Result<()> {
    fill(&session.region, &session.plan, LAST)?;
    for i in 0..session.plan.slots() as usize {
        session.qps[i].post_send(&session.work(i).request(0, SendFlags::SIGNALED))?;
        let done = loop {
            // Unsignaled messages before it may have left completions: those of the test itself.
            let done = session.send_cq.spin(patience())?;
            ensure_success(&done)?;
            if done.wr_id == 0 {
                break done;
            }
        };
        ensure_success(&done)?;
    }
    Ok(())
}

/// Compares the first `slots` slots of the inbox with the pattern.
fn compare(buffer: &Buffer, plan: &Plan, slots: u64, seed: u8) -> Result<()> {
    let expected = pattern(plan, seed);
    let mut got = vec![0; expected.len()];
    for i in 0..slots as usize {
        buffer.read_at(plan.inbox(i) as usize, &mut got)?;
        if let Some(at) = got.iter().zip(&expected).position(|(a, b)| a != b) {
            bail!("byte {at} of message slot {i} is {:#x}, not {:#x}", got[at], expected[at]);
        }
    }
    Ok(())
}

/// Bytes of one message.
fn pattern(plan: &Plan, seed: u8) -> Vec<u8> {
    let byte = |i: u32| i.wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed.wrapping_mul(0x55);
    (0..plan.size).map(byte).collect()
}

fn patience() -> Duration {
    3 * PATIENCE
}

//! The last step of every test: has everything arrived?
//!
//! The client says that it is done; the server leaves its loop and answers. Then WRITE and SEND
//! send one more message of fresh bytes into every slot, which the server compares. READ fills
//! every slot once more, which the client compares, and for atomics the server adds up the words.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use remora::nic::queue::SendFlags;

use super::control::LEAST_ROOM;
use super::pattern::{LAST, SERVER, compare, fill};
use super::plan::Verb;
use super::session::{Session, ensure_success};
use crate::failure::told;

/// The client's part, after it has sent `messages` messages.
pub(super) fn client(session: &mut Session, messages: u64) -> Result<()> {
    let patience = patience(session);
    session.control.send(&messages.to_be_bytes(), patience)?;
    session.control.receive(patience)?;
    match session.plan.verb {
        Verb::Write | Verb::Send => {
            fill(&session.region, &session.plan, LAST)?;
            once_more(session)?;
        }
        Verb::Read => {
            once_more(session)?;
            compare(session.buffer(), &session.plan, SERVER)?;
        }
        Verb::Atomic => {}
    }
    session.control.send(&messages.to_be_bytes(), patience)?;
    let verdict = session.control.receive(patience)?;
    if !verdict.is_empty() {
        let words = remora::printable(&String::from_utf8_lossy(&verdict));
        bail!("the server has found an error: {words}");
    }
    Ok(())
}

/// The server's part, after it has received `received` messages (SEND only).
pub(super) fn server(session: &mut Session, received: u64) -> Result<()> {
    let patience = patience(session);
    session.control.send(&[], patience)?;
    let messages = session.control.receive(patience)?;
    let messages = messages.first_chunk().map_or(0, |b| u64::from_be_bytes(*b));
    let checked = check(session, messages, received);
    // Shortened to fit into one control message.
    let mut verdict = checked.as_ref().map_or_else(told, |()| String::new());
    while verdict.len() > LEAST_ROOM {
        verdict.pop();
    }
    session.control.send(verdict.as_bytes(), patience)?;
    checked
}

fn check(session: &Session, messages: u64, received: u64) -> Result<()> {
    let plan = &session.plan;
    match plan.verb {
        Verb::Write => compare(session.buffer(), plan, LAST),
        Verb::Send => {
            compare(session.buffer(), plan, LAST)?;
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

/// Sends, or READs, one more message into every slot.
fn once_more(session: &Session) -> Result<()> {
    for i in 0..session.plan.slots() as usize {
        session.qps[i].post_send(&session.work(i).request(0, SendFlags::SIGNALED))?;
        let done = loop {
            // Unsignaled messages before this one may have left completions of the test itself.
            let done = session.send_cq.spin(patience(session))?;
            ensure_success(&done)?;
            if done.wr_id == 0 {
                break done;
            }
        };
        ensure_success(&done)?;
    }
    Ok(())
}

fn patience(session: &Session) -> Duration {
    3 * session.patience
}

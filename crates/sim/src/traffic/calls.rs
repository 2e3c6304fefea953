//! Calls of kernels (StRoM §5.1). An RPC fetches bytes of the peer's target region; an RPC WRITE
//! sends bytes and gets them back changed. The peer's card writes the results and then a status
//! word, which says that the results are there. The completion of the request says only that the
//! card has the call.

use std::rc::Rc;

use remora_nic::kernel::{CallStatus, Header, Notify, STATUS_WORD_LEN, StatusWord};
use remora_nic::qp::State;
use remora_nic::queue::{RemoteAddress, SendOp};
use remora_offload::kernel::{AsyncProgram, Context, Deployment, Executor, Grant, Program};

use super::receives::places;
use super::records::{Call, Op, Traffic};
use super::spans::cut;
use crate::check::memory::Rest;
use crate::check::{Violation, demand};
use crate::dice::pattern;
use crate::kernel::timing;
use crate::memory::Region;
use crate::options::{CLIENTS_MAX, KernelOptions, Verb};
use crate::world::World;

/// The op-codes of the two kernels.
const FETCH: u64 = 0xFE7C;
const MIRROR: u64 = 0x3177;
/// The bits that [`mirror`] changes in each byte.
const CHANGED: u8 = 0x5A;
const CHECKER: &str = "calls";
const WORD_LEN: u64 = STATUS_WORD_LEN as u64;

impl Call {
    /// The status word of a successful call.
    fn says(&self) -> [u8; STATUS_WORD_LEN] {
        let (cookie, len) = (self.cookie, self.content.len() as u32);
        StatusWord { cookie, len, status: CallStatus::OK }.to_bytes()
    }
}

/// The kernel that returns granted memory: address and length are its parameters.
async fn fetch(context: Context) -> Result<(), CallStatus> {
    let (addr, len) = context
        .params(|bytes| {
            let (addr, len) = bytes.split_first_chunk().ok_or(CallStatus::BAD_PARAMS)?;
            let len = len.try_into().map_err(|_| CallStatus::BAD_PARAMS)?;
            Ok((u64::from_le_bytes(*addr), u32::from_le_bytes(len)))
        })
        .await?;
    context.send_memory(addr, len).await
}

/// The kernel that returns its payload, changed.
async fn mirror(context: Context) -> Result<(), CallStatus> {
    loop {
        context.room().await?;
        let more = context.payload(|piece, port| {
            port.output()?.extend(piece.iter().map(|byte| byte ^ CHANGED));
            Ok(())
        });
        match more.await? {
            Some(result) => result?,
            None => return Ok(()),
        }
    }
}

/// The kernels of a host, with grants for `regions`.
pub(super) fn kernels(options: &KernelOptions, regions: &[&Region]) -> Executor {
    let mut kernels = Executor::new(options.limits);
    kernels.set_timing(options.port.map(timing));
    let grants: Vec<Grant> =
        regions.iter().map(|region| Grant { key: region.key, write: false }).collect();
    let deployment = |name| Deployment::new(name, grants.clone()).budget(u64::MAX);
    // Each client of the card calls kernels of its own.
    for client in 0..=CLIENTS_MAX {
        let (fetch, mirror) = (AsyncProgram::new(fetch), AsyncProgram::new(mirror));
        for (opcode, name, program) in [
            (FETCH, "fetch", Box::new(fetch) as Box<dyn Program>),
            (MIRROR, "mirror", Box::new(mirror)),
        ] {
            let deployed = kernels.deploy_for((client, opcode), deployment(name), program);
            deployed.expect("its op-code is free");
        }
    }
    kernels
}

pub(super) fn send_op(verb: Verb) -> SendOp {
    if verb == Verb::Rpc {
        SendOp::Rpc { opcode: FETCH }
    } else {
        SendOp::RpcWrite { opcode: MIRROR }
    }
}

impl Traffic {
    /// Plans a call and takes its parts of the regions; `None` if there is no room.
    pub(super) fn plan_call(&mut self, world: &mut World, s: usize, verb: Verb) -> Option<Op> {
        let len = self.length(s);
        let read = if verb == Verb::Rpc { len } else { 0 };
        let target = (self.sides[s ^ 1].target.spans.take(&mut self.dice, read)?, read);
        let call = self.place_call(world, s, verb, len, target);
        if call.is_none() {
            self.free_target(s, Some(target));
        }
        call
    }

    /// Takes parts of these lengths of an end's own buffers: all of them, or none.
    fn take_all<const N: usize>(&mut self, s: usize, lens: [u64; N]) -> Option<[u64; N]> {
        let spans = &mut self.sides[s].local.spans;
        let mut taken = [0; N];
        for (i, len) in lens.into_iter().enumerate() {
            let Some(start) = spans.take(&mut self.dice, len) else {
                taken.iter().zip(lens).take(i).for_each(|(at, len)| spans.give_back(*at, len));
                return None;
            };
            taken[i] = start;
        }
        Some(taken)
    }

    fn place_call(
        &mut self,
        world: &mut World,
        s: usize,
        verb: Verb,
        len: u64,
        target: (u64, u64),
    ) -> Option<Op> {
        let (params, payload) = self.ask(s, verb, len, target);
        let message_len = (remora_nic::kernel::HEADER_LEN + params.len() + payload.len()) as u64;
        let [start, results, word] = self.take_all(s, [message_len, len, WORD_LEN])?;
        let cookie = self.dice.number();
        let own = &self.sides[s].local.region;
        let at = |start| RemoteAddress { addr: own.iova + start, rkey: own.key };
        let header = Header {
            notify: Notify::Word(at(word)),
            local: false,
            params_len: params.len() as u16,
            to: at(results),
            max_len: len as u32,
            cookie,
        };
        let mut message = header.to_bytes().to_vec();
        message.extend_from_slice(&params);
        message.extend_from_slice(&payload);
        let content: Rc<[u8]> = if verb == Verb::Rpc {
            let peer = &self.sides[s ^ 1];
            let memory = &world.hosts[peer.end.host].memory;
            peer.target.region.read(memory, target.0, len).into()
        } else {
            payload.iter().map(|byte| byte ^ CHANGED).collect()
        };
        self.clear_word(world, s, word);
        let word_id = self.id();
        let call = Call { results: (results, len), word, word_id, cookie, content, target };
        let sges = self.sides[s].options.queues.sges;
        Some(Op {
            verb,
            len: message_len,
            content: message.into(),
            local: (start, message_len),
            pieces: cut(&mut self.dice, start, message_len, sges),
            target: None,
            frees_target: false,
            word: None,
            compare: 0,
            operand: 0,
            key: 0,
            queue: 0,
            group: None,
            call: Some(call),
        })
    }

    /// The parameters and the payload of a call.
    fn ask(&mut self, s: usize, verb: Verb, len: u64, target: (u64, u64)) -> (Vec<u8>, Vec<u8>) {
        if verb == Verb::RpcWrite {
            return (Vec::new(), pattern(self.dice.number(), len as usize));
        }
        let region = &self.sides[s ^ 1].target.region;
        let mut params = (region.iova + target.0).to_le_bytes().to_vec();
        params.extend_from_slice(&(len as u32).to_le_bytes());
        (params, Vec::new())
    }

    fn clear_word(&mut self, world: &mut World, s: usize, word: u64) {
        let side = &self.sides[s];
        let memory = &mut world.hosts[side.end.host].memory;
        side.local.region.write(memory, word, &[0; STATUS_WORD_LEN]);
        let places = places(&side.local.region, &[(word, WORD_LEN)]);
        self.hosts[side.end.host].model.wrote(&places, &[0; STATUS_WORD_LEN]);
    }

    /// Tells the memory oracle what the peer's card will write.
    pub(super) fn begin_call(&mut self, s: usize, id: u64, call: Call) {
        let side = &mut self.sides[s];
        let region = &side.local.region;
        let (results, word) =
            (places(region, &[call.results]), places(region, &[(call.word, WORD_LEN)]));
        let model = &mut self.hosts[side.end.host].model;
        model.begins(id, results, Rc::clone(&call.content));
        model.posted(call.word_id, word);
        side.calls.insert(id, call);
    }

    /// Checks which calls have ended.
    pub(super) fn look_after_calls(&mut self, world: &World, s: usize) -> Result<(), Violation> {
        let side = &self.sides[s];
        let host = side.end.host;
        let memory = &world.hosts[host].memory;
        let status = |call: &Call| {
            let word = side.local.region.read(memory, call.word, WORD_LEN);
            Some(StatusWord::parse(&word.try_into().ok()?)?.status)
        };
        let ended: Vec<(u64, CallStatus)> =
            side.calls.iter().filter_map(|(id, call)| Some((*id, status(call)?))).collect();
        for (id, status) in ended {
            let Some(call) = self.sides[s].calls.remove(&id) else { continue };
            // The status word is written last, so all results must be there.
            let model = &mut self.hosts[host].model;
            if status == CallStatus::OK {
                model.received(call.word_id, &call.says(), Rest::Untouched, memory)?;
                model.done(id, memory)?;
                self.stats.answered += 1;
            } else {
                // Calls in both directions can block each other, and faults can delay their
                // results.
                demand(
                    [CallStatus::CONGESTED, CallStatus::LATE].contains(&status),
                    CHECKER,
                    || format!("call {id} ended with: {status}"),
                )?;
                model.returned(call.word_id, &[], Rest::Anything, memory)?;
                model.given_up(id, memory)?;
                self.stats.congested += 1;
            }
            self.free_call(s, &call);
        }
        self.abandon_calls(world, s)
    }

    /// Frees a call's parts of the regions.
    pub(super) fn free_call(&mut self, s: usize, call: &Call) {
        let spans = &mut self.sides[s].local.spans;
        spans.give_back(call.results.0, call.results.1);
        spans.give_back(call.word, WORD_LEN);
        self.free_target(s, Some(call.target));
    }

    /// Gives up the calls of a connection of which one queue pair has failed. Some of their
    /// results may have been written.
    fn abandon_calls(&mut self, world: &World, s: usize) -> Result<(), Violation> {
        let gone = [s, s ^ 1].into_iter().any(|s| {
            let end = &self.sides[s].end;
            let info = world.hosts[end.host].nic.query_qp(end.qpn);
            info.is_none_or(|info| info.state == State::Error)
        });
        if !gone || self.sides[s].calls.is_empty() {
            return Ok(());
        }
        let side = &mut self.sides[s];
        let legal = side.closing || self.options.may_fail(&side.options);
        demand(legal, CHECKER, || format!("end {s} lost {} answers", side.calls.len()))?;
        let host = side.end.host;
        for (id, call) in core::mem::take(&mut side.calls) {
            self.unsettled.push((host, id));
            self.unsettled_words.push((host, call.word_id));
        }
        Ok(())
    }
}

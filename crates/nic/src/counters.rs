//! The card's counters: what has happened, under names that a person can look up.
//!
//! The comments are shown with the values, for example by `remora stats`.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// The card's counters. Each only ever rises.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Counters {
            /// Every counter's name, value and meaning, in the order of the documentation.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64, &'static str)> {
                [$((stringify!($name), self.$name, concat!($($doc),+).trim_ascii()),)+].into_iter()
            }
        }
    };
}

counters! {
    /// Packets received, refused ones included.
    rx_packets,
    /// Payload bytes of packets accepted by a queue pair.
    rx_bytes,
    /// Packets sent.
    tx_packets,
    /// Payload bytes of packets sent.
    tx_bytes,
    /// Packets to the card itself that it handed over, without the driver: see
    /// `Config::local_shortcut`. They count as sent and as received, too.
    local_packets,
    /// SENDs and WRITEs between queue pairs of this card that were carried out without packets.
    local_messages,
    /// Requests and responses sent again after a loss.
    tx_retransmitted,
    /// Acknowledges sent.
    tx_acks,
    /// Negative acknowledges sent, receiver-not-ready included.
    tx_naks,
    /// Receiver-not-ready NAKs sent: a SEND came and no receive element was posted.
    tx_rnr_naks,
    /// Congestion notifications sent.
    tx_cnps,
    /// Congestion notifications received.
    rx_cnps,
    /// Packets that arrived with the congestion-experienced mark.
    rx_ecn_marked,
    /// Negative acknowledges received, receiver-not-ready included.
    rx_naks,
    /// Receiver-not-ready NAKs received.
    rx_rnr_naks,
    /// Lossy dialect: packets found lost, by later ones that had arrived.
    found_lost,
    /// Lossy dialect: acknowledges that told of packets behind a missing one.
    rx_selective,
    /// Lossy dialect: paths that took no packets for a while, as they had lost more than others.
    paths_retired,
    /// Lossy dialect: packets sent again after a silence, to learn what is missing.
    probes,
    /// Lossy dialect: acknowledges that told of a packet that had arrived before. Unless the
    /// network made the copy, it was sent again for nothing.
    tx_for_nothing,
    /// Lossy dialect: recoveries that were for nothing, so that the window is what it was before:
    /// the packets that had been found lost were only late.
    recoveries_undone,
    /// Retransmission timers that ran out.
    timeouts,
    /// Retries beyond the retry count of a queue pair, since its peer's card exists and has not
    /// taken what was sent: the peer's process is stopped, or its machine is busy.
    retries_waited,
    /// Peers found to be gone while requests waited for them: the process with their card has
    /// ended.
    peers_gone,
    /// Read responses or acknowledges that showed that an earlier response was lost.
    implied_naks,
    /// Requests received twice and answered again.
    rx_duplicates,
    /// Requests received ahead of the expected PSN.
    rx_out_of_sequence,
    /// Dropped: malformed (too short, truncated, wrong padding).
    drop_malformed,
    /// Dropped: from an address of this machine, but not from the port of the card there. Another
    /// process of the machine pretends to be that card.
    drop_source_port,
    /// Dropped: the ICRC does not fit the bytes.
    drop_icrc,
    /// Dropped: header version other than 0.
    drop_version,
    /// Dropped: partition key other than the default partition's.
    drop_pkey,
    /// Dropped: op-code unknown, or StRoM's on a queue pair that did not agree to them.
    drop_opcode,
    /// Dropped: op-code of another transport service than the queue pair's.
    drop_transport,
    /// Dropped: no such queue pair.
    drop_unknown_qp,
    /// Dropped: the queue pair takes no such packet in its state.
    drop_qp_state,
    /// Dropped: from another address than the queue pair is connected to.
    drop_wrong_source,
    /// Dropped: wrong Q_Key.
    drop_qkey,
    /// Dropped: a datagram or unreliable SEND with no receive element, or one too small.
    drop_no_receive,
    /// Dropped: a packet of an unreliable message with a packet missing or out of order.
    drop_uc_sequence,
    /// Dropped: a response that no outstanding request waits for.
    drop_ghost_response,
    /// Dropped: a repeated READ or atomic whose saved state is gone or does not match.
    drop_stale_duplicate,
    /// Management datagrams received by the communication manager (which counts its own
    /// refusals).
    rx_management,
    /// Management datagrams sent.
    tx_management,
    /// Dropped: a packet for queue pair 1 that is not a management datagram.
    drop_management,
    /// Refused: a request whose op-code may not come here, or with a wrong length.
    refused_invalid_request,
    /// Refused: a packet of the lossy dialect that contradicts another one of its message.
    refused_contradiction,
    /// Lossy dialect: packets ahead of the expected one that could not be placed (no receive
    /// element, or a key that does not open the memory). They come again.
    drop_early,
    /// Lossy dialect: packets farther ahead of the expected one than is remembered. They come
    /// again.
    drop_far_ahead,
    /// Lossy dialect: packets ahead of the expected one for which there was no room: as many
    /// messages were begun, or packets waited for their turn, as are kept. They come again.
    drop_ahead_full,
    /// Lossy dialect: acknowledges that told of packets behind a missing one that were never sent.
    drop_ghost_selective,
    /// Refused: a remote key that does not exist.
    refused_key,
    /// Refused: a remote key of another protection domain.
    refused_domain,
    /// Refused: an access outside its region.
    refused_bounds,
    /// Refused: an access the region or queue pair does not permit.
    refused_permission,
    /// Refused: memory that the driver could not reach.
    refused_memory,
    /// Refused: more READs and atomics at once than agreed.
    refused_too_many_reads,
    /// Refused: an XRC request for a shared receive queue that its domain does not have.
    refused_xrc_srq,
    /// Refused: an RPC op-code with no kernel deployed.
    refused_no_kernel,
    /// Refused: an RPC or RPC WRITE whose header is malformed; ends the connection.
    refused_bad_call,
    /// Invocations of kernels, local ones included.
    kernel_calls,
    /// Invocations that ended well.
    kernel_done,
    /// Payload bytes handed to kernels by RPC WRITE.
    kernel_bytes,
    /// Payload bytes of WRITEs that passed bound kernels.
    kernel_tapped_bytes,
    /// Bound kernels that failed and were stopped: payload passes them unchanged.
    kernel_taps_stopped,
    /// RPC packets told to wait (RNR NAK): no room for another invocation or for more payload, or
    /// the requester has not acknowledged many answers.
    kernel_busy,
    /// Invocations ended: the kernel refused its parameters, or the first packet did not hold all.
    kernel_bad_params,
    /// Invocations ended: the object that was looked for is not there.
    kernel_not_found,
    /// Invocations ended: the result did not fit the requester's buffer.
    kernel_too_long,
    /// Invocations ended: memory not granted, deregistered meanwhile, or out of reach.
    kernel_access,
    /// Invocations ended: more steps than allowed (a cycle in a list, an endless loop).
    kernel_budget,
    /// Invocations ended: an object whose checksum was wrong at every reading.
    kernel_inconsistent,
    /// Invocations ended: the kernel itself failed (a WebAssembly trap).
    kernel_trap,
    /// Invocations ended: the kernel wanted more memory than it may have.
    kernel_memory,
    /// Invocations ended: the host's fallback had no room, or was gone.
    kernel_unavailable,
    /// Invocations ended: the kernel was unloaded meanwhile.
    kernel_unloaded,
    /// Invocations ended: their results could not be sent in time.
    kernel_congested,
    /// Invocations ended: the rest of their payload did not come in time.
    kernel_late,
    /// Invocations ended with a status of the kernel's own.
    kernel_failed,
    /// Invocations dropped because their queue pair ended.
    kernel_dropped,
    /// Doorbells refused: an index that does not fit its ring, or a queue pair in the wrong state.
    doorbells_refused,
    /// Work-queue elements fetched.
    elements_fetched,
    /// Work-queue elements refused: unknown op-code, too many entries, wrong length or state.
    elements_invalid,
    /// Work-queue elements refused: a local key, bounds or permission.
    elements_protection,
    /// Work-queue elements flushed by an error.
    elements_flushed,
    /// Elements carried out inside the card, on loop-back queue pairs.
    chain_elements,
    /// Elements of loop-back queue pairs whose peer was gone.
    chain_peer_gone,
    /// WAITs refused: no such completion queue.
    chain_bad_wait,
    /// ENABLEs refused: no such managed queue in the protection domain, or past its end.
    chain_bad_enable,
    /// WAITs that held a queue for longer than its limit.
    chain_wait_expired,
    /// Queue pairs stopped because their chain had used up its budget.
    chain_budget,
    /// Responses received with another length than the request asked for.
    bad_responses,
    /// Incidents forgotten because the driver did not take them: see `Nic::poll_incident`.
    incidents_lost,
    /// Completions delivered.
    completions,
    /// Completions lost because their queue was full.
    cq_overflows,
    /// Elements and READs that waited because their queue pair had its share of a pool of the card.
    pool_full,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_meanings_come_from_the_fields() {
        let counters = Counters { drop_icrc: 3, ..Counters::default() };
        let row = counters.iter().find(|(name, ..)| *name == "drop_icrc").unwrap();
        assert_eq!(row, ("drop_icrc", 3, "Dropped: the ICRC does not fit the bytes."));
    }
}

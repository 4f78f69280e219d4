/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * The build of an object, which build.py includes before every source: a hash of the sources. It tells whether the object is
 * as its sources are. libbpf binds the section to all programs of the object, so that it can be read from the kernel too:
 * registrations.py, and `bpftool prog` as metadata.
 */
#pragma once

const char bpf_metadata_build[32] __attribute__((section(".rodata.mltcp"), used)) = MLTCP_BUILD;

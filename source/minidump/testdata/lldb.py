# Prints, as a line of JSON each, what lldb makes of the minidumps that the environment names: JUDGED has their paths, FILES directories of modules' files.
import json
import os

import lldb


def judge(debugger, path):
    out = {"Path": path, "Threads": [], "Modules": []}
    target = debugger.CreateTarget("")
    process = target.LoadCore(path)
    if not process or not process.IsValid():
        return dict(out, Error="lldb cannot read it")
    out["PID"] = process.GetProcessID()
    for t in process:
        # Of a frame and the calls that are inlined into it, the innermost has the return address; lldb moves the others into the calls.
        frames, inlined = [], False
        for f in t:
            if not inlined:
                frames.append(f.GetPC())
            inlined = f.IsInlined()
        regs = {}
        if t.GetNumFrames():
            for group in t.GetFrameAtIndex(0).GetRegisters():
                if "General" in group.GetName():
                    for r in group:
                        if r.GetValue():
                            regs[r.GetName()] = r.GetValueAsUnsigned()
        out["Threads"].append({
            "TID": t.GetThreadID(), "Frames": frames, "Regs": regs, "Stop": t.GetStopDescription(200) or "",
        })
    for m in target.modules:
        base = m.GetObjectFileHeaderAddress().GetLoadAddress(target)
        out["Modules"].append({"Path": m.GetPlatformFileSpec().fullpath, "ID": m.GetUUIDString() or "", "Base": base})
    debugger.DeleteTarget(target)
    return out


def __lldb_init_module(debugger, _):
    debugger.SetAsync(False)
    for d in os.environ.get("FILES", "").split(":"):
        if d:
            debugger.HandleCommand('settings append target.exec-search-paths "%s"' % d)
    for path in os.environ["JUDGED"].split(":"):
        print("JUDGE " + json.dumps(judge(debugger, path)), flush=True)

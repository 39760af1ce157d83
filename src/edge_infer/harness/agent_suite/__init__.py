"""Agent suite: tasks on simulated devices, scored by the state that the device ends in.

An agent is any OpenAI-compatible endpoint that calls tools. It gets a sentence and the tools of a
simulated phone or home; when it stops, the whole state of the device is compared with the state
that the task asks for. What the agent says about it counts for nothing.
"""

--  SPDX-License-Identifier: Apache-2.0
--  eh_ada.adb raises and handles exceptions: the same with any unwinder.
with Ada.Text_IO; use Ada.Text_IO;
with Ada.Exceptions; use Ada.Exceptions;
with Ada.Finalization;

procedure Eh_Ada is
   package Guards is
      type Guard is new Ada.Finalization.Limited_Controlled with record
         N : Integer := 0;
      end record;
      overriding procedure Finalize (G : in out Guard);
   end Guards;
   package body Guards is
      overriding procedure Finalize (G : in out Guard) is
      begin
         Put_Line ("finalize" & Integer'Image (G.N));
      end Finalize;
   end Guards;

   Own : exception;

   function Deep (N : Integer) return Integer is
      G : Guards.Guard;
   begin
      G.N := N;
      if N = 0 then
         raise Own with "raised";
      end if;
      return Deep (N - 1) + N;
   end Deep;

   function Divide (A, B : Integer) return Integer is (A / B);

   task type Worker;
   task body Worker is
   begin
      Put_Line (Integer'Image (Deep (2)));
   exception
      when E : Own => Put_Line ("in a task " & Exception_Message (E));
   end Worker;
begin
   for I in 0 .. 3 loop
      begin
         Put_Line (Integer'Image (Deep (I)));
      exception
         when E : Own => Put_Line (Exception_Name (E) & " " & Exception_Message (E));
      end;
   end loop;
   begin
      begin
         Put_Line (Integer'Image (Deep (1)));
      exception
         when Own => raise;
      end;
   exception
      when others => Put_Line ("again");
   end;
   begin
      Put_Line (Integer'Image (Divide (1, Integer'Value ("0"))));
   exception
      when Constraint_Error => Put_Line ("constraint");
   end;
   declare
      W : Worker;
      pragma Unreferenced (W);
   begin
      null;
   end;
   raise Own with "to the end";
end Eh_Ada;
